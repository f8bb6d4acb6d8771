"""The forward pass of accelerators: one program computes a step through all layers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import cast

import jax.numpy as jnp
from jax import Array

from model.buckets import LABEL_BUCKETS, Buckets, packed_logit_rows
from model.forward import Computed, Extension
from model.packed_sequence import PackedSequence
from model.score_buffer import Floats
from model.whole_steps.executables import ExtendKey, PackedKey, PrefillKey, WholeStepExecutables, WholeStepKey
from model.whole_steps.filling import filled
from model.whole_steps.layout import ItemStep, PrefillStep
from model.whole_steps.programs import Pool, WholeStepPrograms
from model.whole_steps.shape import StepShape
from scoring.layout import Head


class WholeStepForward:
    """A :class:`model.forward.Forward` whose steps are one call each, over items or pieces of several prefixes."""

    def __init__(
        self, programs: WholeStepPrograms, executables: WholeStepExecutables, buckets: Buckets, shape: StepShape
    ) -> None:
        self.shapes = buckets.shapes
        self.block_tokens = shape.block_tokens
        self.prefixes = shape.tiles
        self._programs = programs
        self._executables = executables
        self._buckets = buckets
        self._shape = shape
        shapes = programs.pool(shape.blocks, shape.block_tokens)
        self._pool = Pool(*(jnp.zeros(part.shape, part.dtype) for part in shapes))

    def core(self) -> tuple[WholeStepKey, ...]:
        """See :class:`model.forward.Forward`."""
        return ExtendKey(), PrefillKey(), *(self._buckets.head_key(head, LABEL_BUCKETS[0]) for head in Head)

    def rest(self, *, packed: bool, dense: bool) -> tuple[WholeStepKey, ...]:
        """See :class:`model.forward.Forward`."""
        heads = (self._buckets.head_key(head, labels) for labels in LABEL_BUCKETS[1:] for head in Head)
        masks = [mask for mask, wanted in ((False, packed), (True, dense)) if wanted]
        sizes = self._buckets.packed_sizes
        return *heads, *(PackedKey(size, packed_logit_rows(size), mask) for mask in masks for size in sizes)

    def compile(self, key: Hashable) -> None:
        """See :class:`model.forward.Forward`."""
        self._executables[cast("WholeStepKey", key)]

    def fill(self, extensions: Sequence[Extension]) -> Iterator[tuple[Extension, ...]]:
        """See :class:`model.forward.Forward`."""
        return filled(extensions, self._shape)

    def run(self, extensions: Sequence[Extension]) -> Computed:
        """Compute the extensions of a step: either all of them are stored, or none."""
        weights = self._programs.weights
        if len(extensions[0].stored):
            arrays = PrefillStep.of(extensions, self._shape).arrays
            states, *pool = self._executables[PrefillKey()](*weights, *self._pool, *arrays)
            self._pool = Pool(*pool)
        else:
            arrays = ItemStep.of(extensions, self._shape).arrays
            (states,) = self._executables[ExtendKey()](*weights, *self._pool, *arrays)
        return Computed(states, self._shape.tokens)

    def packed(self, sequence: PackedSequence, *, dense: bool) -> Computed:
        """See :class:`model.forward.Forward`."""
        size, logit_rows = self._buckets.packed_shape(sequence.length, len(sequence.rows))
        program = self._executables[PackedKey(size, logit_rows, dense)]
        (states,) = program(*self._programs.weights, *sequence.arrays(size, logit_rows))
        return Computed(states, size)

    def run_head(self, head: Head, hidden: Floats, labels: Sequence[int]) -> tuple[Array, ...]:
        """See :class:`model.forward.Forward`."""
        key = self._buckets.head_key(head, len(labels))
        outputs: tuple[Array, ...] = self._executables[key](*self._programs.head, *key.padded(hidden, labels))
        return outputs
