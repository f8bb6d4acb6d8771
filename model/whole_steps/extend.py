"""The program of a step of items behind prefixes in the pool."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jax import Array
from numpy.random import Generator

from model.architecture.decoder import Layer, RecurrentLayer
from model.attention.contract import AttendExtension, ItemSlots, StepPrefixes
from model.chips.axes import STATES
from model.programs.kind import ProgramKey, Source, int32
from model.whole_steps.decoder import Carried, StackedDecoder
from model.whole_steps.recurrence import Entering, recur_items


@dataclass(frozen=True, slots=True)
class ExtendKey(ProgramKey[StackedDecoder]):
    """A step of items behind prefixes."""

    everywhere: bool = False  # items are read at several positions each; otherwise at their last ones

    def source(self, decoder: StackedDecoder) -> Source:
        shape, rows = decoder.shape, int32(decoder.shape.tokens)
        tiles = int32(shape.tiles, shape.longest), int32(shape.tiles), rows
        slots = int32(shape.slot_rows), int32(shape.slot_rows), rows
        read = int32(shape.most_read(everywhere=self.everywhere))
        of_states = () if decoder.config.recurrence is None else (*decoder.origins(), int32())
        arguments = (*decoder.weights, *decoder.pool(), rows, rows, *of_states, *tiles, *slots, read)
        return decoder.source(partial(extend, decoder), arguments, decoder.axes_with_pool, (STATES,))

    def known_answer(self, decoder: StackedDecoder, random: Generator) -> None:
        """It needs the pool, so only whole prompts can tell: :func:`model.whole_steps.full_steps.full_steps`."""


def extend(decoder: StackedDecoder, *arguments: Array) -> tuple[Array, ...]:
    """Compute items behind prefixes in the pool.

    (*weights, *pool, tokens [T], positions [T], *states, *tiles, *items, logit positions [n]) -> hidden states of the
    logit positions, float32 [n, width]. tiles: table [tiles, N], counts [tiles] and ends [T] of
    :class:`model.attention.contract.StepPrefixes`; items: :class:`model.attention.contract.ItemSlots`; states: with
    recurrent layers, the block behind whose state the items of each tile begin, [tiles], windows, [T, inputs], and long
    chunks, []: see :class:`model.whole_steps.layout.ItemStep`. A row sees the first ``ends[t]`` tokens of its tile's
    prefix, and the tokens of its own item up to itself.
    """
    weights, pool, (tokens, positions, *of_states, table, counts, ends, rows, begins, slots, read) = decoder.split(
        arguments
    )
    items = ItemSlots(rows, begins, slots)
    prefixes = StepPrefixes(decoder.shape.block_tokens, table, counts, ends)

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
        queries, own = layer.attention_inputs(hidden, rotary)
        found = attend_extension(number, queries, *own, pool.keys, pool.values, number)
        return layer.self_attn.attended(found), carried

    def recur(layer: RecurrentLayer, hidden: Array, number: Array, carried: Carried) -> tuple[Array, Carried]:
        origins, windows, long_chunks = of_states
        assert pool.states is not None
        kept = pool.states.behind(number, origins)
        heads = Entering.of(layer, hidden, kept.inputs, windows).heads(layer)
        return recur_items(heads, kept.states, items, long_chunks), carried

    hidden, _ = decoder.through_layers(weights, tokens, attend, recur if of_states else None, read)
    return (hidden,)
