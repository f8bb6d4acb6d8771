"""The program of a step of pieces of prefixes, which are stored in the pool."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jax import Array
from numpy.random import Generator

from model.architecture.decoder import Layer, RecurrentLayer
from model.attention.contract import AttendPrefix, StepPrefixes
from model.chips.axes import STATES
from model.programs.kind import ProgramKey, Source, int32
from model.whole_steps.decoder import Carried, Pool, StackedDecoder
from model.whole_steps.recurrence import Entering, recur_pieces


@dataclass(frozen=True, slots=True)
class PrefillKey(ProgramKey[StackedDecoder]):
    """A step of pieces of prefixes."""

    def source(self, decoder: StackedDecoder) -> Source:
        shape, rows, first = decoder.shape, int32(decoder.shape.tokens), len(decoder.weights)
        tiles = int32(shape.tiles, shape.longest), int32(shape.tiles), rows
        places, read = int32(shape.tiles, 2), int32(shape.tiles)
        pool = decoder.pool()
        arguments = (*decoder.weights, *pool, rows, rows, *decoder.origins(), *tiles, places, read)
        donated = tuple(range(first, first + len(pool)))
        outputs = (STATES, *decoder.pool_axes)
        return decoder.source(partial(prefill, decoder), arguments, decoder.axes_with_pool, outputs, donated)

    def known_answer(self, decoder: StackedDecoder, random: Generator) -> None:
        """It needs the pool, so only whole prompts can tell: :func:`model.whole_steps.full_steps.full_steps`."""


def prefill(decoder: StackedDecoder, *arguments: Array) -> tuple[Array, ...]:
    """Write the keys and values of prefixes into the pool.

    (*weights, *pool, tokens [T], positions [T], *states, *tiles, places [tiles, 2], logit positions [n]) -> hidden
    states of the logit positions, float32 [n, width], and the pool, whose buffers are donated. places: the block that
    the keys and values of each tile go to, and where in the block they begin. states: with recurrent layers, the block
    behind whose state each tile begins, [tiles], and windows, [T, inputs]: see
    :class:`model.whole_steps.layout.PrefillStep`.

    All keys and values of a layer are stored before any row of the step looks at them, so a step may hold several tiles
    of one prefix. A row sees the first ``ends[t]`` tokens of its prefix, itself among them.
    """
    weights, pool, (tokens, positions, *of_states, table, counts, ends, places, read) = decoder.split(arguments)

    def attention(reach: int | None) -> AttendPrefix:
        begins = None if reach is None else jnp.maximum(positions + 1 - reach, 0)
        return decoder.attention.prefix(StepPrefixes(decoder.shape.block_tokens, table, counts, ends, begins))

    attend_prefix, rotation = decoder.of_kinds(attention), decoder.rotation(positions)
    of_tiles = (ends > 0).reshape(len(table), -1)
    last_rows = jnp.arange(len(table)) * of_tiles.shape[1] + jnp.maximum(of_tiles.sum(axis=1) - 1, 0)

    def attend(layer: Layer, hidden: Array, number: Array, carried: Carried) -> tuple[Array, Carried]:
        rotary, pool = rotation(number), Pool.of(carried)
        (queries, new), stored = layer.attention_inputs(hidden, rotary), decoder.attention.stored
        keys, values = stored(pool.keys, new.keys, number, places), stored(pool.values, new.values, number, places)
        found = attend_prefix(number, queries, keys, values, number)
        return layer.self_attn.attended(found), pool._replace(keys=keys, values=values).arrays

    def recur(layer: RecurrentLayer, hidden: Array, number: Array, carried: Carried) -> tuple[Array, Carried]:
        (origins, windows), pool = of_states, Pool.of(carried)
        assert pool.states is not None
        entering = Entering.of(layer, hidden, pool.states.behind(number, origins).inputs, windows)
        last_inputs = entering.inputs[windows[last_rows, 1:]]
        where = number, origins, places[:, 0]
        out, states = recur_pieces(entering.heads(layer), ends > 0, last_inputs, pool.states, *where)
        return out, pool._replace(states=states).arrays

    hidden, carried = decoder.through_layers(weights, tokens, attend, recur if of_states else None, read, *pool.arrays)
    return hidden, *carried
