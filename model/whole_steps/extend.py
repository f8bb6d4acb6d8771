"""The program of a step of items behind prefixes in the pool."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jax import Array
from numpy.random import Generator

from model.architecture.decoder import Layer
from model.attention.contract import AttendExtension, ItemSlots, StepPrefixes
from model.chips.axes import STATES
from model.programs.kind import Source, int32
from model.whole_steps.decoder import Carried, StackedDecoder


@dataclass(frozen=True, slots=True)
class ExtendKey:
    """A step of items behind prefixes."""

    everywhere: bool = False  # items are read at several positions each; otherwise at their last ones

    def source(self, decoder: StackedDecoder) -> Source:
        """See :class:`model.programs.kind.ProgramKey`."""
        shape, rows = decoder.shape, int32(decoder.shape.tokens)
        tiles = int32(shape.tiles, shape.longest), int32(shape.tiles), rows
        slots = int32(shape.slot_rows), int32(shape.slot_rows), rows
        read = int32(shape.most_read(everywhere=self.everywhere))
        arguments = (*decoder.weights, *decoder.pool(), rows, rows, *tiles, *slots, read)
        return decoder.source(partial(extend, decoder), arguments, decoder.axes_with_pool, (STATES,))

    def known_answer(self, decoder: StackedDecoder, random: Generator) -> None:
        """It needs the pool, so only whole prompts can tell: :func:`model.whole_steps.full_steps.full_steps`."""


def extend(decoder: StackedDecoder, *arguments: Array) -> tuple[Array, ...]:
    """Compute items behind prefixes in the pool.

    (*weights, pool keys, pool values, tokens [T], positions [T], *tiles, *items, logit positions [n]) -> hidden
    states of the logit positions, float32 [n, width]. tiles: table [tiles, N], counts [tiles] and ends [T] of
    :class:`model.attention.contract.StepPrefixes`; items:
    :class:`model.attention.contract.ItemSlots`. A row sees the first ``ends[t]`` tokens of its tile's prefix, and
    the tokens of its own item up to itself.
    """
    weights, (keys, values, tokens, positions, table, counts, ends, *slots, logit_positions) = decoder.split(arguments)
    items, prefixes = ItemSlots(*slots), StepPrefixes(keys.shape[3], table, counts, ends)

    def attention(reach: int | None) -> AttendExtension:
        if reach is None:
            return decoder.attention.extension(items, prefixes)
        begins = jnp.maximum(positions + 1 - reach, 0)
        own_ends = jnp.arange(1, len(items.rows) + 1, dtype=jnp.int32)
        near = items._replace(begins=jnp.maximum(items.begins, own_ends - reach))
        return decoder.attention.extension(near, prefixes._replace(begins=begins))

    attend_extension, rotation = decoder.of_kinds(attention), decoder.rotation(positions)

    def attend(layer: Layer, hidden: Array, number: Array, carried: Carried) -> tuple[Array, Carried]:
        rotary = rotation(number)
        queries, own = layer.queries(hidden, rotary), layer.key_values(hidden, rotary)
        return attend_extension(number, queries, *own, keys, values, number).out, carried

    hidden, _ = decoder.through_layers(weights, tokens, attend, logit_positions)
    return (hidden,)
