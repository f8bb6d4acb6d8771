"""The programs that a worker on a target would compile, and those that it would call. Neither needs weights.

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
from model.chips.axes import DIVIDED
from model.chips.loading import bytes_of_a_chip
from model.chips.shares import Shares
from model.engine import Engine
from model.platforms import Platform
from model.programs.gathering import GatherKey
from model.programs.label_head import HeadKey
from model.programs.target_head import TargetHeadKey
from model.whole_steps.decoder import StackedDecoder
from model.whole_steps.extend import ExtendKey
from model.whole_steps.forward import Key, WholeStepForward
from model.whole_steps.packed import PackedKey
from model.whole_steps.positions import PositionsKey
from model.whole_steps.prefill import PrefillKey
from model.whole_steps.prefix_attention import PrefixAttentionKey
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

    key: Key
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
        """Raises :class:`model.prefixes.pool.ContextTooLongError` if the platform's memory is too small."""
        chips = platform.chips
        shares = None if chips is None else Shares.of(config, chips.count)
        self.config = config if shares is None else shares.own
        """What a chip computes."""
        computed = config if shares is None else shares.whole
        decoder = without_weights(computed, platform, platform.serving_dtype(settings.dtype))
        card = ModelCard("compiled", config.context, config.vocabulary, "")

        def build() -> None:
            self._engine = Engine(decoder, settings, card, "", platform, algorithm)

        jax.eval_shape(build)
        forward = self._engine.forward
        assert isinstance(forward, WholeStepForward), "a platform that is compiled for computes whole steps"
        self._forward = forward
        self.block_tokens = forward.block_tokens
        self.shapes = forward.shapes
        count = 1 if chips is None else chips.count
        pool, axes = forward.pool.arrays, forward.executables.decoder.pool_axes
        own = [
            tuple(size // count if axis in DIVIDED else size for size, axis in zip(part.shape, of_part, strict=True))
            for part, of_part in zip(pool, axes, strict=True)
        ]
        embedding, head = decoder.model.embed_tokens.weight[...].shape, decoder.head_kernel().shape
        divided = {computed.vocabulary: self.config.vocabulary}
        self.arrays = {
            **dict(zip(("pool", "pool", "kept inputs", "states"), own, strict=False)),
            "embedding": tuple(divided.get(size, size) for size in embedding),
            "head": tuple(divided.get(size, size) for size in head),
        }
        """Shapes, as a chip has them."""
        weights = _bytes(nnx.state(decoder)) if chips is None else bytes_of_a_chip(decoder, chips)
        self.resident_bytes = weights + _bytes(pool) // count
        """Of a chip."""

    def warm_up(self) -> tuple[Key, ...]:
        """Return the keys of the programs that are compiled before serving."""
        return self._forward.core()

    def program(self, key: Key) -> Program:
        """Return a program by its key."""
        function, arguments, donated = key.source(self._forward.executables.decoder)
        return Program(_name(key, arguments), function, arguments, donated)

    def calls(self, work: Sequence[GroupWork]) -> list[Call]:
        """Return the programs that the engine calls to score this work, in order."""
        recorder = _Recorder(self._forward.executables.decoder)
        with self._forward.calling(recorder.program):
            jax.eval_shape(lambda: [None for _ in self._engine.score(work, lambda: None)])
        return recorder.calls


_AND_TOP = ", the most probable token"


def _name(key: Key, arguments: Sequence[Any]) -> str:
    match key:
        case ExtendKey(everywhere):
            return "extend, read everywhere" if everywhere else f"extend, at most {len(arguments[-1])} items"
        case PrefillKey():
            return "prefill"
        case PackedKey(tokens, _, dense):
            return f"packed {'dense' if dense else 'segment'}, {tokens} tokens"
        case HeadKey(head, rows, labels, top):
            return f"head of {head}, {rows} rows, {labels} labels{_AND_TOP * top}"
        case GatherKey(states):
            return f"gather of {states} states"
        case PrefixAttentionKey():
            return "check of attention"
        case PositionsKey():
            return "check of positions"
        case TargetHeadKey(rows, targets, top):
            return f"head of targets, {rows} rows, {targets} targets{_AND_TOP * top}"
    return str(key)


class OnDevice:
    """Zeros in the place of an array on a device, with what the engine asks of one."""

    def __init__(self, zeros: np.ndarray[Any, Any]) -> None:
        self._zeros = zeros
        self.shape, self.dtype, self.ndim = zeros.shape, zeros.dtype, zeros.ndim

    def __len__(self) -> int:
        return len(self._zeros)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        self.block_until_ready()
        return np.asarray(self._zeros, dtype)

    def copy_to_host_async(self) -> None:
        """Do nothing: it takes no time."""

    def block_until_ready(self) -> OnDevice:
        """Return at once: nothing is computed."""
        return self


class _Recorder:
    """Programs that compute zeros, and nothing else."""

    def __init__(self, decoder: StackedDecoder) -> None:
        self.calls: list[Call] = []
        self._decoder = decoder
        self._outputs: dict[Key, tuple[Any, ...]] = {}

    def program(self, key: Key) -> Callable[..., tuple[Any, ...]]:
        """Return what stands for a program."""
        if key not in self._outputs:
            function, arguments, _ = key.source(self._decoder)
            self._outputs[key] = tuple(OnDevice(_zeros(shape)) for shape in jax.eval_shape(function, *arguments))

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
