"""Takes a step through the recurrent layers of a model, and has the pool of their states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from model.adapted_decoders import Programs
from model.executable_table import ExecutableTable
from model.forward import Extension
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.recurrence import RecurrenceKey, RecurrentInputsKey, RecurrentOutputKey
from model.layerwise.states import KeepStateKey, TakeStateKey
from model.layerwise.steps import Step
from model.prefixes.pool import untouched_zeros


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentStep:
    """What all recurrent layers of a step have in common."""

    weights: Programs[LayerwiseDecoder]  # those of its adapter, and the programs over them
    size: int  # tokens that it computes
    origin: Array  # int32 []: the block behind which its items begin; -1: they begin behind nothing
    kept: Array | None  # int32 []: the block behind which its state is kept
    windows: Array  # see :attr:`model.layerwise.steps.Step.windows`
    last: Array  # int32 []: the last token of the first item
    batches: Sequence[tuple[RecurrenceKey, tuple[Array, ...]]]  # by length bucket: the program, and its indices


class RecurrentLayers:
    """The recurrent layers of a decoder. Their states are kept behind the blocks of the pool."""

    def __init__(self, executables: ExecutableTable[LayerwiseDecoder], blocks: int, *, on_host: bool) -> None:
        decoder = executables.decoder
        self._run = executables
        self._blocks = blocks  # of the pool
        self._block_tokens = decoder.buckets.block_tokens
        self._pool = [
            tuple(untouched_zeros(part, on_host=on_host) for part in decoder.state(blocks))
            for _ in decoder.recurrent_layers
        ]
        self._nothing = jnp.zeros(decoder.recurred(decoder.buckets.step_tokens).shape, jnp.float32)

    def of_step(self, step: Step, first: Extension, weights: Programs[LayerwiseDecoder]) -> RecurrentStep:
        """Prepare a step, whose extensions all begin where its first one does. One that is stored is alone."""
        keeps = len(first.stored) > 0
        block = first.source
        if block is None:
            block = first.table[(first.start - 1) // self._block_tokens] if first.start else -1
        batches = [
            (RecurrenceKey(batch.bucket.length, 1 if keeps else batch.bucket.rows, keeps), batch)
            for batch in step.self_attention
        ]
        host = (
            np.int32(block),
            np.int32(first.stored[-1]) if keeps else None,
            step.windows,
            np.int32(len(first.tokens) - 1),
            [(batch.places[: key.rows], batch.lengths[: key.rows], batch.slots) for key, batch in batches],
        )
        origin, kept, windows, last, indices = jax.device_put(host)
        keyed = [(key, own) for (key, _), own in zip(batches, indices, strict=True)]
        return RecurrentStep(weights, len(step.tokens), origin, kept, windows, last, keyed)

    def through(self, number: int, hidden: Array, step: RecurrentStep) -> Array:
        """Return the hidden states behind one of the layers, float32 [T, width]; number: among recurrent layers."""
        run, layer = step.weights.executables, step.weights.decoder.recurrent_layers[number]
        inputs, state = self._run[TakeStateKey(self._blocks)](*self._pool[number], step.origin)
        *given, last_inputs = run[RecurrentInputsKey(step.size)](*layer, hidden, inputs, step.windows, step.last)
        out = self._nothing
        for key, indices in step.batches:
            out, *after = run[key](*layer, *given, out, state, *indices)
            if step.kept is not None:
                keep = self._run[KeepStateKey(self._blocks)]
                self._pool[number] = keep(*self._pool[number], last_inputs, *after, step.kept)
        (hidden,) = run[RecurrentOutputKey(step.size)](*layer, hidden, out)
        return hidden
