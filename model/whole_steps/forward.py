"""The forward pass of accelerators: one program computes a step through all layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

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

ProgramOf = Callable[[WholeStepKey], Callable[..., tuple[Any, ...]]]
"""Returns the program of a key, ready to be called."""


class WholeStepForward:
    """A :class:`model.forward.Forward` whose steps are one call each, over items or pieces of several prefixes.

    executables: its compiled programs. pool: the arrays of its pool; programs that write into it replace them.
    """

    def __init__(
        self, programs: WholeStepPrograms, executables: WholeStepExecutables, buckets: Buckets, shape: StepShape
    ) -> None:
        self.shapes = buckets.shapes
        self.block_tokens = shape.block_tokens
        self.prefixes = shape.tiles
        self._programs = programs
        self.executables = executables
        self._program: ProgramOf = lambda key: self.executables[key]
        self._buckets = buckets
        self._shape = shape
        shapes = programs.pool(shape.blocks, shape.block_tokens)
        self.pool = Pool(*(jnp.zeros(part.shape, part.dtype) for part in shapes))

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
        self.executables[cast("WholeStepKey", key)]

    @contextmanager
    def calling(self, program: ProgramOf) -> Iterator[None]:
        """Call other programs than the compiled ones meanwhile, such as programs that record their arguments."""
        self._program, own = program, self._program
        try:
            yield
        finally:
            self._program = own

    def fill(self, extensions: Sequence[Extension]) -> Iterator[tuple[Extension, ...]]:
        """See :class:`model.forward.Forward`."""
        return filled(extensions, self._shape)

    def run(self, extensions: Sequence[Extension]) -> Computed:
        """Compute the extensions of a step: either all of them are stored, or none."""
        weights = self._programs.weights
        if len(extensions[0].stored):
            arrays = PrefillStep.of(extensions, self._shape).arrays
            states, *pool = self._program(PrefillKey())(*weights, *self.pool, *arrays)
            self.pool = Pool(*pool)
        else:
            arrays = ItemStep.of(extensions, self._shape).arrays
            (states,) = self._program(ExtendKey())(*weights, *self.pool, *arrays)
        return Computed(states, self._shape.tokens)

    def packed(self, sequence: PackedSequence, *, dense: bool) -> Computed:
        """See :class:`model.forward.Forward`."""
        size, logit_rows = self._buckets.packed_shape(sequence.length, len(sequence.rows))
        program = self._program(PackedKey(size, logit_rows, dense))
        (states,) = program(*self._programs.weights, *sequence.arrays(size, logit_rows))
        return Computed(states, size)

    def run_head(self, head: Head, hidden: Floats, labels: Sequence[int]) -> tuple[Array, ...]:
        """See :class:`model.forward.Forward`."""
        key = self._buckets.head_key(head, len(labels))
        outputs: tuple[Array, ...] = self._program(key)(*self._programs.head, *key.padded(hidden, labels))
        return outputs
