"""The program of a step of pieces of prefixes, which are stored in the pool."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jax import Array, lax
from numpy.random import Generator

from model.architecture.decoder import KeyValues, Layer
from model.attention.contract import AttendPrefix, StepPrefixes
from model.chips.axes import POOL, STATES
from model.programs.kind import Source, int32
from model.whole_steps.decoder import Carried, Pool, StackedDecoder


@dataclass(frozen=True, slots=True)
class PrefillKey:
    """A step of pieces of prefixes."""

    def source(self, decoder: StackedDecoder) -> Source:
        """See :class:`model.programs.kind.ProgramKey`."""
        shape, rows, first = decoder.shape, int32(decoder.shape.tokens), len(decoder.weights)
        tiles = int32(shape.tiles, shape.longest), int32(shape.tiles), rows
        places = int32(shape.tiles, 2), int32(shape.tiles)
        arguments = (*decoder.weights, *decoder.pool(), rows, rows, *tiles, *places)
        outputs = (STATES, POOL, POOL)
        return decoder.source(
            partial(prefill, decoder), arguments, decoder.axes_with_pool, outputs, donated=(first, first + 1)
        )

    def known_answer(self, decoder: StackedDecoder, random: Generator) -> None:
        """It needs the pool, so only whole prompts can tell: :func:`model.whole_steps.full_steps.full_steps`."""


def prefill(decoder: StackedDecoder, *arguments: Array) -> tuple[Array, ...]:
    """Write the keys and values of prefixes into the pool.

    (*weights, pool keys, pool values, tokens [T], positions [T], *tiles, places [tiles, 2], logit positions [n]) ->
    hidden states of the logit positions, float32 [n, width], and the pool, whose buffers are donated. places: the
    block that the keys and values of each tile go to, and where in the block they begin. All keys and values of a
    layer are stored before any row of the step looks at them, so a step may hold several tiles of one prefix. A row
    sees the first ``ends[t]`` tokens of its prefix, itself among them.
    """
    weights, (keys, values, tokens, positions, table, counts, ends, places, logit_positions) = decoder.split(arguments)

    def attention(reach: int | None) -> AttendPrefix:
        begins = None if reach is None else jnp.maximum(positions + 1 - reach, 0)
        return decoder.attention.prefix(StepPrefixes(keys.shape[3], table, counts, ends, begins))

    attend_prefix, rotation = decoder.of_kinds(attention), decoder.rotation(positions)

    def attend(layer: Layer, hidden: Array, number: Array, carried: Carried) -> tuple[Array, Carried]:
        rotary = rotation(number)
        pool = _stored(Pool(*carried), layer.key_values(hidden, rotary), number, places)
        queries = layer.queries(hidden, rotary)
        return attend_prefix(number, queries, *pool, number).out, pool

    hidden, pool = decoder.through_layers(weights, tokens, attend, logit_positions, keys, values)
    return hidden, *pool


def _stored(pool: Pool, new: KeyValues, layer: Array, places: Array) -> Pool:
    """Write the keys and values of a step, [T, K, D], into a layer of the pool, tile by tile."""
    tiles = len(places)

    def written(part: Array, rows: Array) -> Array:
        rows = jnp.pad(rows, ((0, 0), (0, 0), (0, part.shape[-1] - rows.shape[-1])))
        tiled = rows.reshape(tiles, -1, *rows.shape[1:]).swapaxes(1, 2)  # [tiles, K, T / tiles, P]
        for number in range(tiles):
            start = (layer, 0, places[number, 0], places[number, 1], 0)
            part = lax.dynamic_update_slice(part, tiled[number][None, :, None], start)
        return part

    return Pool(written(pool.keys, new.keys), written(pool.values, new.values))
