"""The TPU kernels, interpreted on a CPU: they agree with float64, race with nothing, and each row is on its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.attention.contract import AttentionOutput
from model.attention.tpu.visits import prefix_visits
from tests.model.attention_steps import BLOCK, BLOCKS, INTERPRETED, Items, Prefixes, assert_close, races_found

PREFIX = jax.jit(INTERPRETED.attend_prefix)
OWN = jax.jit(INTERPRETED.attend_own)

RAGGED = Prefixes.of(
    # Two tiles of one prefix, none, a tile of another prefix, and one that goes on behind the first one's first block.
    [[3, 1, 4], [3, 1, 4], [], [7, 2], [3, 5, 8]],
    [
        [*range(33, 49)],  # ends that differ, up to the last token of the last block
        [1, 0, 16, 17, 15, 48, *[40] * 10],
        [0] * 16,
        [20] * 16,
        [5] * 15 + [48],
    ],
)


def attend_prefix(step: Prefixes) -> AttentionOutput:
    return AttentionOutput(*PREFIX(*step.arguments))


def attend_own(step: Items) -> AttentionOutput:
    return AttentionOutput(*OWN(step.queries, step.keys, step.values, step.slots))


def test_ragged_tiles_of_several_prefixes_agree_with_float64_and_nothing_races() -> None:
    found = attend_prefix(RAGGED)
    assert not races_found()
    assert_close(found, RAGGED.expected())


def test_rows_that_see_nothing_are_zero_behind_minus_infinity() -> None:
    found = attend_prefix(RAGGED)
    blind = RAGGED.ends == 0
    assert blind.any()
    assert not np.asarray(found.out)[blind].any()
    assert np.isneginf(np.asarray(found.log_sum_exp)[blind]).all()


def test_a_step_that_sees_no_prefix_at_all_is_zero() -> None:
    found = attend_prefix(Prefixes.of([[3, 1, 4]] + [[]] * 4, [[0] * 16] * 5))
    assert not np.asarray(found.out).any()
    assert np.isneginf(found.log_sum_exp).all()


@pytest.mark.slow
@settings(max_examples=12)
@given(data=st.data(), seed=st.integers(0, 99))
def test_any_ends_and_tables_agree_with_float64(data: st.DataObject, seed: int) -> None:
    table = data.draw(st.lists(st.permutations(range(BLOCKS)).map(lambda all: all[:3]), min_size=5, max_size=5))
    shared = data.draw(st.lists(st.booleans(), min_size=4, max_size=4))
    for tile, same in enumerate(shared, start=1):
        table[tile] = table[tile - 1] if same else table[tile]
    rows = st.lists(st.integers(0, 3 * BLOCK), min_size=16, max_size=16)
    step = Prefixes.of(table, data.draw(st.lists(rows, min_size=5, max_size=5)), seed)
    found = attend_prefix(step)
    assert not races_found()
    assert_close(found, step.expected())


def test_a_row_has_the_same_bits_at_another_place_and_in_other_company() -> None:
    """The tiles of a step in another order, with other neighbours, and the rows of a tile in another order."""
    found = attend_prefix(RAGGED)
    order, rows = np.array([3, 1, 4, 0, 1]), np.random.RandomState(1).permutation(16)
    index = (order[:, None] * 16 + rows).reshape(-1)
    moved = Prefixes(
        RAGGED.queries[index],
        RAGGED.pool_keys,
        RAGGED.pool_values,
        RAGGED.layer,
        RAGGED.table[order],
        RAGGED.counts[order],
        RAGGED.ends[index],
    )
    again = attend_prefix(moved)
    assert np.array_equal(again.out, found.out[index])
    assert np.array_equal(again.log_sum_exp, found.log_sum_exp[index])


def test_tiles_of_one_prefix_share_the_visits_of_its_blocks() -> None:
    visits = jax.jit(prefix_visits, static_argnums=(2, 3))(RAGGED.table, RAGGED.counts, BLOCK, 2)
    count = int(visits.made)
    listed = zip(*(np.asarray(part).tolist() for part in (visits.first, visits.tiles, visits.begins)), strict=True)
    assert list(listed)[:count] == [(0, 2, 0), (3, 1, 0), (4, 1, 0), (0, 2, 32), (4, 1, 32)]
    assert not np.asarray(visits.tiles)[count:].any()


OWN_ROWS, OWN_SLOTS = 640, 1280
MANY = [300, 130, 129, 20, 17, 8, 3, 1, 1, 2]


def test_items_of_all_lengths_see_themselves_and_nothing_races() -> None:
    step = Items.of(MANY, OWN_ROWS, OWN_SLOTS)
    found = attend_own(step)
    assert not races_found()
    assert_close(found, step.expected())


@pytest.mark.slow
@settings(max_examples=8)
@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=40), seed=st.integers(0, 99))
def test_any_items_see_themselves(lengths: list[int], seed: int) -> None:
    fitting = [length for length, end in zip(lengths, np.cumsum(lengths), strict=True) if end <= OWN_ROWS]
    step = Items.of(fitting, OWN_ROWS, OWN_SLOTS, seed)
    assert_close(attend_own(step), step.expected())


def test_an_item_has_the_same_bits_at_another_place_and_in_other_company() -> None:
    step, other = Items.of(MANY, OWN_ROWS, OWN_SLOTS), [40, 3, *MANY[:0:-1]]
    found = attend_own(step)
    starts = np.concatenate([[0], np.cumsum(MANY)])
    moved, at = Items.of(other, OWN_ROWS, OWN_SLOTS, seed=1), 43
    parts = [np.asarray(part, np.float32) for part in (moved.queries, moved.keys, moved.values)]
    places = []
    for item in range(len(MANY) - 1, 0, -1):
        source = slice(starts[item], starts[item + 1])
        for part, original in zip(parts, (step.queries, step.keys, step.values), strict=True):
            part[at : at + MANY[item]] = np.asarray(original[source], np.float32)
        places.append((source, slice(at, at + MANY[item])))
        at += MANY[item]
    queries, keys, values = (jnp.asarray(part, jnp.bfloat16) for part in parts)
    again = attend_own(Items(queries, keys, values, moved.slots, moved.begins))
    for source, place in places:
        assert np.array_equal(again.out[place], found.out[source])
        assert np.array_equal(again.log_sum_exp[place], found.log_sum_exp[source])
