"""The kernel that stores keys and values, interpreted on a CPU, writes what updates of the pool write, and no more."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from model.attention.contract import PlainProducts
from model.attention.tpu.attention import TPUAttention
from tests.model.attention.attention_steps import races_found

L, K, BLOCKS, BLOCK, D, TILE = 2, 3, 5, 32, 16, 16


def test_the_rows_of_tiles_go_to_their_places_and_nothing_else_changes() -> None:
    random = np.random.RandomState(1)
    pool = jnp.asarray(random.standard_normal((L, K, BLOCKS, BLOCK, D)), jnp.bfloat16)
    rows = jnp.asarray(random.standard_normal((4 * TILE, K, D)), jnp.bfloat16)
    # Two tiles of one block, the first half of another one, and padding.
    places = jnp.asarray([[2, 0], [2, TILE], [1, 0], [BLOCKS - 1, 0]], jnp.int32)
    attention = TPUAttention(interpret=pltpu.InterpretParams(detect_races=True), lanes=D)
    found = jax.jit(attention.stored)(pool, rows, jnp.int32(1), places)
    assert not races_found()
    assert np.array_equal(found, PlainProducts().stored(pool, rows, jnp.int32(1), places))
    assert np.array_equal(found[0], pool[0])
    assert not np.array_equal(found[1], pool[1])
