"""The recurrence of recurrent layers in whole steps, whose tiles begin with states of the pool.

A piece of a prefix goes through its tiles one after another, each from the state of the one before it. Items begin with
the state behind the prefix of their tile, and those of at most a chunk of tokens are computed all at once. What a chunk
needs is always computed in the same shapes, so the bits of an item depend on nothing beside it.

Shapes: T rows of a step in tiles of t; S rows of slots in chunks of L; H heads of values; C channels of the
convolution; B blocks of the pool; see :mod:`model.layers.delta_rule` for the others.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from model.architecture.decoder import RecurrentLayer
from model.attention.contract import ItemSlots
from model.layers.delta_rule import CHUNK, Chunk, DeltaInputs, for_each_head, times

LONG_CHUNKS = "long_chunks"
"""The name of the loop over chunks of long items in a compiled program."""


class States(NamedTuple):
    """What recurrent layers keep behind each block of the pool, float32."""

    inputs: Array  # of the convolution, the last ones one after another, [layers, B, (inputs - 1) C / n, n] for some n
    states: Array  # [layers, B, H, Dk, Dv]

    def behind(self, layer: Array, blocks: Array) -> States:
        """Return what a layer keeps behind some blocks, int32 [n]: [n, ...] each. Nothing is kept behind -1."""

        def of(part: Array) -> Array:
            kept = part[layer, jnp.maximum(blocks, 0)]
            return jnp.where((blocks >= 0).reshape(-1, *[1] * (kept.ndim - 1)), kept, 0.0)

        return States(of(self.inputs), of(self.states))

    def written(self, inputs: Array, state: Array, layer: Array, block: Array) -> States:
        """Return the same with what a layer keeps behind a block, int32 []."""
        return States(
            lax.dynamic_update_slice(self.inputs, inputs.reshape(1, 1, *self.inputs.shape[2:]), (layer, block, 0, 0)),
            lax.dynamic_update_slice(self.states, state[None, None], (layer, block, 0, 0, 0)),
        )


class Entering(NamedTuple):
    """What enters the recurrence of a layer, of the rows of a step."""

    inputs: Array  # of the convolution, those kept of the tiles' prefixes and then the step's, [kept + T, C]
    convolved: Array  # [T, C]
    decay: Array  # [T, H]
    rate: Array  # [T, H]

    @classmethod
    def of(cls, layer: RecurrentLayer, hidden: Array, kept: Array, windows: Array) -> Entering:
        """Return it of hidden states [T, width]; kept: the inputs of each tile's prefix, [tiles, ...].

        windows: int32 [T, inputs], see :attr:`model.whole_steps.layout.ItemStep.windows`.
        """
        mixed, decay, rate = layer.inputs(hidden)
        inputs = jnp.concatenate([kept.reshape(-1, mixed.shape[-1]), mixed])
        return cls(inputs, layer.linear_attn.convolved([inputs[places] for places in windows.T]), decay, rate)

    def heads(self, layer: RecurrentLayer) -> DeltaInputs:
        """Return what the recurrence takes of all rows, [T, ...]."""
        return layer.linear_attn.heads(self.convolved, self.decay, self.rate)


def recur_pieces(
    heads: DeltaInputs, present: Array, last_inputs: Array, states: States, layer: Array, origins: Array, kept: Array
) -> tuple[Array, States]:
    """Return what is read by the rows of pieces of prefixes, [T, H, Dv], and the pool with what is kept behind them.

    present: bool [T]; other rows change no state; last_inputs: of the convolution, up to each tile's last row, [tiles,
    inputs - 1, C]; origins: the block behind whose state each tile begins, int32 [tiles], -1 for none; kept: the block
    behind which its own is kept. A tile may begin with what one before it has kept.
    """
    tiles, rows = len(origins), len(heads.decay) // len(origins)
    length = min(CHUNK, rows)
    decay, rate = (jnp.where(present[:, None], part, 0.0) for part in (heads.decay, heads.rate))
    heads = for_each_head(heads._replace(decay=decay, rate=rate))

    def split(part: Array) -> Array:
        """Return [tiles, chunks of a tile, H, L, ...]."""
        return jnp.swapaxes(part.reshape(tiles, rows // length, length, *part.shape[1:]), 2, 3)

    chunks = Chunk.of(DeltaInputs(*map(split, heads)))

    def through_tile(states: States, tile: tuple[Chunk, Array, Array, Array]) -> tuple[States, Array]:
        of_tile, inputs, origin, block = tile
        before = lax.dynamic_slice(
            states.states, (layer, jnp.maximum(origin, 0), 0, 0, 0), (1, 1, *states.states.shape[2:])
        )
        state, read = jnp.where(origin >= 0, before[0, 0], 0.0), list[Array]()
        for number in range(rows // length):
            state, out = Chunk(*(part[number] for part in of_tile)).through(state)
            read.append(out)
        return states.written(inputs, state, layer, block), jnp.stack(read)

    states, out = lax.scan(through_tile, states, (chunks, last_inputs, origins, kept))
    return jnp.swapaxes(out, 2, 3).reshape(heads.values.shape), states


def recur_items(heads: DeltaInputs, states: Array, slots: ItemSlots, long_chunks: Array) -> Array:
    """Return what is read by the rows of items, [T, H, Dv]. Rows of no item read any finite numbers.

    states: where the items of each tile begin, [tiles, H, Dk, Dv]; long_chunks: how many of the first chunks belong to
    slots that are longer than a chunk, int32 [].
    """
    tiles, length = len(states), min(CHUNK, len(slots.rows))
    rows, begins = slots.rows.reshape(-1, length), slots.begins.reshape(-1, length)
    is_filled = begins < len(slots.rows)

    def of_chunks(own: Array, filled: Array) -> DeltaInputs:
        """Return what some rows take of the recurrence, [..., H, L, ...]."""
        vectors = (part.reshape(len(part), -1)[own].reshape(*own.shape, *part.shape[1:]) for part in heads[:3])
        gates = (jnp.where(filled[..., None], part[own], 0.0) for part in heads[3:])
        found = for_each_head(DeltaInputs(*vectors, *gates))
        return DeltaInputs(*(jnp.swapaxes(part, own.ndim - 1, own.ndim) for part in found))

    def of_rows(part: Array) -> Array:
        """Return [T, H, ...] of [chunks, H, L, ...]."""
        in_slots = jnp.swapaxes(part, 1, 2)
        return jnp.take(in_slots.reshape(-1, *in_slots.shape[2:]), slots.slots, axis=0, mode="clip")

    # A token sees those of its own slot, up to itself. What is of others is multiplied by zero.
    sees = (begins[:, None, :, None] == begins[:, None, None, :]) & is_filled[:, None, None]
    chunks = Chunk.of(of_chunks(rows, is_filled), sees)
    of_keys, read = chunks.apart()
    asked = of_rows(chunks.faded)[..., None] * for_each_head(heads).queries - of_rows(of_keys)
    answered = times(jnp.swapaxes(asked.reshape(tiles, -1, *asked.shape[1:]), 1, 2), states)

    def through_chunk(number: Array, so_far: tuple[Array, Array]) -> tuple[Array, Array]:
        read, carried = so_far
        is_first = begins[number, 0] == number * length
        begin = states[rows[number, 0] // (len(heads.decay) // tiles)]
        after, out = Chunk.of(of_chunks(rows[number], is_filled[number])).through(jnp.where(is_first, begin, carried))
        return read.at[number].set(out), after

    with jax.named_scope(LONG_CHUNKS):
        read, _ = lax.fori_loop(0, long_chunks, through_chunk, (read, jnp.zeros_like(states[0])))
    is_short = slots.slots >= long_chunks * length
    of_state = jnp.swapaxes(answered, 1, 2).reshape(heads.values.shape)
    return jnp.where(is_short[:, None, None], of_state, 0.0) + of_rows(read)
