"""The forward pass of accelerators: one program computes a step through all layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array

from model.adapted_decoders import AdaptedDecoders
from model.buckets import Buckets, packed_logit_rows
from model.forward import Extension
from model.packed_sequence import PackedSequence
from model.programs.gathering import GatherKey
from model.programs.heads import Heads, ProgramOf, first_heads, rest_of_heads
from model.programs.kind import ProgramKey
from model.states import Computed
from model.whole_steps.decoder import Pool, StackedDecoder
from model.whole_steps.extend import ExtendKey
from model.whole_steps.filling import filled
from model.whole_steps.layout import ItemStep, PrefillStep
from model.whole_steps.packed import PackedKey
from model.whole_steps.positions import PositionsKey
from model.whole_steps.prefill import PrefillKey
from model.whole_steps.prefix_attention import PrefixAttentionKey

Key = ProgramKey[StackedDecoder]


class WholeStepForward:
    """A :class:`model.forward.Forward` whose steps are one call each, over items or pieces of several prefixes.

    executables: its compiled programs, without an adapter. pool: the arrays of its pool; programs that write into it
    replace them.
    """

    def __init__(self, decoders: AdaptedDecoders[StackedDecoder], buckets: Buckets) -> None:
        self.decoders = decoders
        self._decoder, executables = decoders.base
        self._shape = self._decoder.shape
        self.shapes = replace(buckets.shapes, tile_tokens=self._shape.tile_rows, slot_tokens=self._shape.slot_rows)
        self.block_tokens = self.grain = self._shape.block_tokens
        self.prefixes = self._shape.tiles
        self.executables = executables
        self._program: ProgramOf = lambda key: self.executables[key]
        self.heads = Heads(self._decoder, lambda key: self._program(key))
        self._buckets = buckets
        self.pool = self._decoder.empty_pool()

    @property
    def has_states(self) -> bool:
        return self.pool.states is not None

    def core(self) -> tuple[Key, ...]:
        # Only the check of the whole model can check a whole step, so no program of one is left for later.
        read = self._shape.tiles, *(self._shape.most_read(everywhere=everywhere) for everywhere in (False, True))
        gathering = map(GatherKey, dict.fromkeys(read))
        windowed = () if self._decoder.config.window is None else (PrefixAttentionKey(windowed=True),)
        checked = PositionsKey(), PrefixAttentionKey(), *windowed
        return *checked, ExtendKey(), ExtendKey(everywhere=True), PrefillKey(), *gathering, *first_heads()

    def rest(self, *, packed: bool, dense: bool) -> tuple[Key, ...]:
        masks = [mask for mask, wanted in ((False, packed), (True, dense)) if wanted]
        sizes = self._buckets.packed_sizes
        heads = rest_of_heads(has_classes=bool(self._decoder.config.classes))
        gathering = dict.fromkeys(GatherKey(packed_logit_rows(size)) for size in sizes if masks)
        known = set(self.core())
        packing = (PackedKey(size, packed_logit_rows(size), mask) for mask in masks for size in sizes)
        return *heads, *(key for key in gathering if key not in known), *packing

    def compile(self, key: Hashable) -> None:
        self.executables[cast("Key", key)]

    @contextmanager
    def calling(self, program: ProgramOf) -> Iterator[None]:
        """Call other programs than the compiled ones meanwhile, such as programs that record their arguments."""
        self._program, own = program, self._program
        try:
            yield
        finally:
            self._program = own

    def clean(self) -> None:
        """See :class:`model.forward.Forward`. A prefix writes whole tiles, and leaves the rest of its last block."""
        arrays = self.pool.arrays

        def zeros(*arrays: Array) -> tuple[Array, ...]:
            return tuple(map(jnp.zeros_like, arrays))

        # In the memory of the pool, which may be most of the device's.
        where = tuple(array.sharding for array in arrays)
        self.pool = Pool.of(jax.jit(zeros, donate_argnums=range(len(arrays)), out_shardings=where)(*arrays))

    def fill(self, extensions: Sequence[Extension]) -> Iterator[tuple[Extension, ...]]:
        return filled(extensions, self._shape)

    def run(self, extensions: Sequence[Extension]) -> Computed:
        """Compute the extensions of a step: either all of them are stored, or none.

        What is stored and read at several tokens, a long label, is computed twice: once to be read, once to be stored.
        """
        if not len(extensions[0].stored):
            return self._extend(extensions)
        read = self._extend(extensions) if extensions[0].read > 1 else None
        arrays = PrefillStep.of(extensions, self._shape).arrays
        program, weights = self._with(extensions[0].adapter, PrefillKey())
        states, *pool = program(*weights, *self.pool.arrays, *arrays)
        self.pool = Pool.of(pool)
        return Computed(states, self._shape.tokens) if read is None else Computed(read.states, 2 * self._shape.tokens)

    def _extend(self, items: Sequence[Extension]) -> Computed:
        program, weights = self._with(items[0].adapter, ExtendKey(everywhere=items[0].read > 1))
        (states,) = program(*weights, *self.pool.arrays, *ItemStep.of(items, self._shape).arrays)
        return Computed(states, self._shape.tokens)

    def _with(self, adapter: str | None, key: Key) -> tuple[Callable[..., tuple[Any, ...]], tuple[Array, ...]]:
        """Return the program of a key, and the weights that it takes, with an adapter or without one."""
        if adapter is None:
            return self._program(key), self._decoder.weights
        decoder, executables = self.decoders[adapter]
        return executables[key], decoder.weights

    def packed(self, sequence: PackedSequence, *, dense: bool, adapter: str | None = None) -> Computed:
        size, logit_rows = self._buckets.packed_shape(sequence.length, len(sequence.rows))
        program, weights = self._with(adapter, PackedKey(size, logit_rows, dense))
        (states,) = program(*weights, *sequence.arrays(size, logit_rows, self._decoder.config.window))
        return Computed(states, size)
