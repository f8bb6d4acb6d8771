"""The programs that a worker on a target would compile, and those that it would call, without weights and without it.

The engine is the worker's own, so that what is counted is what the engine does. Only its arrays are not there: it is
made and run inside of ``jax.eval_shape``, where new arrays are no more than shapes, its weights take no memory, and
calls of programs are recorded instead of made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx

from checkpoints.card import ModelCard
from model.architecture.config import DecoderConfig
from model.architecture.decoder import Decoder
from model.buckets import HeadKey
from model.engine import Engine
from model.platforms import Platform
from model.whole_steps.executables import ExtendKey, PackedKey, PrefillKey, WholeStepExecutables, WholeStepKey
from model.whole_steps.forward import WholeStepForward
from scoring.layout import GroupWork
from scoring.planning.algorithms import AlgorithmSetting
from settings.engine import EngineSettings


@dataclass(frozen=True, slots=True)
class Program:
    """A function that is compiled ahead of time."""

    name: str
    function: Callable[..., Any]
    arguments: Sequence[Any]  # trees of shapes
    donated: tuple[int, ...] = ()  # numbers of arguments


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A program that the engine called."""

    key: WholeStepKey
    arguments: tuple[Any, ...]  # those that the host computed are NumPy's


class WeightlessEngine:
    """An engine on a target, whose calls are recorded."""

    def __init__(
        self,
        config: DecoderConfig,
        settings: EngineSettings,
        platform: Platform,
        algorithm: AlgorithmSetting = "auto",
    ) -> None:
        """Raises :class:`model.pool.ContextTooLongError` if the model does not fit into the platform's memory."""
        self.config = config
        decoder = without_weights(config, platform, platform.serving_dtype(settings.dtype))
        card = ModelCard("compiled", config.context, config.vocabulary, "")

        def build() -> None:
            self._engine = Engine(decoder, settings, card, "", platform, algorithm)

        jax.eval_shape(build)
        forward = self._engine.forward
        assert isinstance(forward, WholeStepForward), "a platform that is compiled for computes whole steps"
        self._forward = forward
        self.block_tokens = forward.block_tokens
        pool = jax.tree.leaves(forward.pool)
        self.arrays = {
            "pool": pool[0].shape,
            "embedding": decoder.model.embed_tokens.weight[...].shape,
            "head": decoder.head_kernel().shape,
        }
        self.resident_bytes = _bytes(nnx.state(decoder)) + _bytes(pool)

    def warm_up(self) -> tuple[WholeStepKey, ...]:
        """Return the keys of the programs that are compiled before serving."""
        return self._forward.core()

    def program(self, key: WholeStepKey) -> Program:
        """Return a program by its key."""
        function, arguments, donated = self._forward.executables.source(key)
        return Program(_name(key, arguments), function, arguments, donated)

    def calls(self, work: Sequence[GroupWork]) -> list[Call]:
        """Return the programs that the engine calls to score this work, in order."""
        recorder = _Recorder(self._forward.executables)
        with self._forward.calling(recorder.program):
            jax.eval_shape(lambda: [None for _ in self._engine.score(work, lambda: None)])
        return recorder.calls


def _name(key: WholeStepKey, arguments: Sequence[Any]) -> str:
    match key:
        case ExtendKey():
            return f"extend, at most {len(arguments[-1])} items"
        case PrefillKey():
            return "prefill"
        case PackedKey(tokens, _, dense):
            return f"packed {'dense' if dense else 'segment'}, {tokens} tokens"
        case HeadKey(head, rows, labels):
            return f"head of {head}, {rows} rows, {labels} labels"


class _Recorder:
    """Programs that compute zeros, and nothing else."""

    def __init__(self, executables: WholeStepExecutables) -> None:
        self.calls: list[Call] = []
        self._executables = executables
        self._outputs: dict[WholeStepKey, tuple[Any, ...]] = {}

    def program(self, key: WholeStepKey) -> Callable[..., tuple[Any, ...]]:
        """Return what stands for a program."""
        if key not in self._outputs:
            function, arguments, _ = self._executables.source(key)
            self._outputs[key] = tuple(_zeros(shape) for shape in jax.eval_shape(function, *arguments))

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(Call(key, arguments))
            return self._outputs[key]

        return call


def without_weights(config: DecoderConfig, platform: Platform, dtype: str) -> Decoder:
    """Return a decoder whose weights take no memory: all numbers of an array are the same one."""
    shapes = nnx.eval_shape(lambda: Decoder(config, dtype=dtype, rngs=nnx.Rngs(0), tied_as_rows=platform.tied_as_rows))
    graph, state = nnx.split(shapes)
    decoder: Decoder = nnx.merge(graph, jax.tree.map(_zeros, state))
    return decoder


def _zeros(shape: Any) -> np.ndarray[Any, Any]:
    return np.broadcast_to(np.zeros((), shape.dtype), shape.shape)


def _bytes(tree: Any) -> int:
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
