"""The kernel that stores keys and values, interpreted on a CPU, writes what updates of the pool write, and no more."""

from __future__ import annotations

import numpy as np
from jax.experimental.pallas import tpu as pltpu

from model.attention.contract import PlainProducts
from model.attention.tpu.attention import TPUAttention
from tests.model.attention.attention_steps import quickly, races_found, random_bf16

L, K, BLOCKS, BLOCK, D, TILE = 2, 3, 5, 32, 16, 16


def test_the_rows_of_tiles_go_to_their_places_and_nothing_else_changes() -> None:
    random = np.random.RandomState(1)
    pool, rows = random_bf16(random, L, K, BLOCKS, BLOCK, D), random_bf16(random, 4 * TILE, K, D)
    # Two tiles of one block, the first half of another one, and padding.
    places = np.array([[2, 0], [2, TILE], [1, 0], [BLOCKS - 1, 0]], np.int32)
    attention = TPUAttention(interpret=pltpu.InterpretParams(detect_races=True), lanes=D)
    found = np.asarray(quickly(attention.stored)(pool, rows, np.int32(1), places))
    assert not races_found(found)
    assert np.array_equal(found, quickly(PlainProducts().stored)(pool, rows, np.int32(1), places))
    assert np.array_equal(found[0], pool[0])
    assert not np.array_equal(found[1], pool[1])
