"""The TPU kernels, interpreted on a CPU: they agree with float64, race with nothing, and each row is on its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from model.attention.contract import AttentionOutput
from model.attention.tpu.visits import Windows, active_windows, prefix_visits, slot_windows
from tests.model.attention.attention_steps import (
    BF16,
    BLOCK,
    BLOCKS,
    TOLERANCE,
    D,
    Extension,
    Packed,
    Prefixes,
    assert_close,
    computed,
    of_items,
    of_packed,
    of_prefixes,
    quickly,
    races_found,
    segments,
)

PREFIX = quickly(of_prefixes)
EXTENSION = quickly(of_items)
PACKED = quickly(of_packed)

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
    return computed(PREFIX, *step.arguments)


def test_ragged_tiles_of_several_prefixes_agree_with_float64_and_nothing_races() -> None:
    found = attend_prefix(RAGGED)
    assert not races_found(found)
    assert_close(found, RAGGED.expected())


@pytest.fixture(scope="module")
def of_ragged() -> AttentionOutput:
    return attend_prefix(RAGGED)


def test_rows_that_see_nothing_are_zero_behind_minus_infinity(of_ragged: AttentionOutput) -> None:
    found = of_ragged
    blind = RAGGED.ends == 0
    assert blind.any()
    assert not np.asarray(found.out)[blind].any()
    assert np.isneginf(np.asarray(found.log_sum_exp)[blind]).all()


def test_a_step_that_sees_no_prefix_at_all_is_zero() -> None:
    found = attend_prefix(Prefixes.of([[3, 1, 4]] + [[]] * 4, [[0] * 16] * 5))
    assert not np.asarray(found.out).any()
    assert np.isneginf(found.log_sum_exp).all()


@pytest.mark.slow
@settings(max_examples=6)
@given(data=st.data(), seed=st.integers(0, 99))
def test_any_ends_and_tables_agree_with_float64(data: st.DataObject, seed: int) -> None:
    table = data.draw(st.lists(st.permutations(range(BLOCKS)).map(lambda all: all[:3]), min_size=5, max_size=5))
    shared = data.draw(st.lists(st.booleans(), min_size=4, max_size=4))
    for tile, same in enumerate(shared, start=1):
        table[tile] = table[tile - 1] if same else table[tile]
    rows = st.lists(st.integers(0, 3 * BLOCK), min_size=16, max_size=16)
    step = Prefixes.of(table, data.draw(st.lists(rows, min_size=5, max_size=5)), seed)
    found = attend_prefix(step)
    assert not races_found(found)
    assert_close(found, step.expected())


def test_a_row_has_the_same_bits_at_another_place_and_in_other_company(of_ragged: AttentionOutput) -> None:
    """The tiles of a step in another order, with other neighbours, and the rows of a tile in another order."""
    found = of_ragged
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


ROWS, SLOTS = 640, 1280
MANY = [300, 130, 129, 20, 17, 8, 3, 1, 1, 2]  # tokens of items
ENDS = np.random.RandomState(4).randint(0, 3 * BLOCK + 1, ROWS).astype(np.int32)
ENDS[[5, 77, *range(256, 384)]] = 0  # a tile without a prefix among them
STEP = Extension.of(MANY, ROWS, SLOTS, ENDS)


def attend_extension(step: Extension) -> AttentionOutput:
    return computed(EXTENSION, *step.arguments)


def test_items_of_all_lengths_see_their_prefixes_and_themselves_and_nothing_races() -> None:
    """Their heads do not fill the lanes; those of prefixes and of packed sequences do in the tests beside this one."""
    found = attend_extension(STEP)
    assert not races_found(found)
    assert found.out.shape[-1] == D
    assert_close(found, STEP.expected())


def test_items_without_any_prefix_see_themselves() -> None:
    step = Extension.of(MANY, ROWS, SLOTS, np.zeros(ROWS, np.int32))
    assert_close(attend_extension(step), step.items.expected())


@pytest.mark.slow
@settings(max_examples=4)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    ends=st_numpy.arrays(np.int32, ROWS, elements=st.integers(0, 3 * BLOCK)),
    seed=st.integers(0, 99),
)
def test_any_items_see_their_prefixes_and_themselves(lengths: list[int], ends: np.ndarray, seed: int) -> None:
    fitting = [length for length, end in zip(lengths, np.cumsum(lengths), strict=True) if end <= ROWS]
    step = Extension.of(fitting, ROWS, SLOTS, ends, seed)
    assert_close(attend_extension(step), step.expected())


def test_an_item_has_the_same_bits_at_another_place_and_in_other_company() -> None:
    """Items in another order, behind others, whose tiles see what they saw."""
    ends = np.full(ROWS, 41, np.int32)
    step = Extension.of(MANY, ROWS, SLOTS, ends)
    starts, others = np.concatenate([[0], np.cumsum(MANY)]), [40, 3]
    moved = Extension.of([*others, *MANY[:0:-1]], ROWS, SLOTS, ends, seed=1)
    parts = moved.items.queries, moved.items.keys, moved.items.values
    originals = step.items.queries, step.items.keys, step.items.values
    places, at = [], sum(others)
    for item in range(len(MANY) - 1, 0, -1):
        source, place = slice(starts[item], starts[item + 1]), slice(at, at + MANY[item])
        for part, original in zip(parts, originals, strict=True):
            part[place] = original[source]
        places.append((source, place))
        at += MANY[item]
    # Of the two prefixes, all tiles see the first.
    same = replace(step.prefixes, table=np.tile(step.prefixes.table[:1], (ROWS // 128, 1)))
    found = attend_extension(replace(step, prefixes=same))
    again = attend_extension(Extension(moved.items, replace(same, queries=moved.items.queries)))
    for source, place in places:
        assert np.array_equal(again.out[place], found.out[source])
        assert np.array_equal(again.log_sum_exp[place], found.log_sum_exp[source])


def test_a_packed_sequence_sees_prefixes_and_segments_and_nothing_races() -> None:
    step = Packed.of(segments(300, [20, 1, 100, 33, 7], 500))
    found = computed(PACKED, *step.arguments)
    assert not races_found(found)
    assert_close(found, step.expected())


@pytest.mark.slow
def test_a_packed_sequence_of_several_parts_sees_prefixes_and_segments() -> None:
    step = Packed.of(segments(700, [20, 1, 100, 33, 7, 600, 900], 2500))
    assert_close(AttentionOutput(*PACKED(*step.arguments)), step.expected())


def test_windows_that_no_row_of_a_chunk_sees_are_not_visited() -> None:
    ranges = segments(300, [212, 256, 256], 1024)
    seen = windows_of(ranges, active_windows)
    assert seen == [[0], [0], [0, 256], [0, 256], [0, 256, 512], [0, 256, 512], [0, 256, 768], [0, 256, 768]]


def test_the_windows_of_a_chunk_begin_where_its_first_slot_does() -> None:
    # Slots of 32 rows for items of 20: the first chunk sees seven of them, the second begins within the seventh.
    begins = np.arange(256) // 20 * 32
    ranges = np.stack([begins, begins + np.arange(256) % 20 + 1], axis=-1)[:, None].astype(np.int32)
    assert windows_of(ranges, slot_windows) == [[0], [192]]
    # A slot of 512 takes whole windows, and those behind it are counted from its beginning.
    long = np.array([[512, 513 + 3 * n] for n in range(120)] + [[1024, 1025 + n] for n in range(8)], np.int32)
    assert windows_of(long[:, None], slot_windows) == [[512, 768, 1024]]


def windows_of(ranges: np.ndarray, listed: Callable[..., Windows]) -> list[list[int]]:
    """Return where the windows begin that chunks of 128 rows visit."""
    windows = jax.jit(listed, static_argnums=(1, 2))(ranges, 128, 1024)
    return [row[:count] for row, count in zip(np.asarray(windows.starts).tolist(), windows.counts, strict=True)]


@pytest.mark.parametrize("value", [100.0, np.nan])
def test_a_row_whose_weights_overflow_changes_no_bit_of_others(value: float, of_ragged: AttentionOutput) -> None:
    """A hundred times as large a query has scores of hundreds, far above those that its first reference comes from."""
    row = 3
    queries = RAGGED.queries.copy()
    queries[row] *= value
    spoilt = replace(RAGGED, queries=queries)
    before, found = of_ragged, attend_prefix(spoilt)
    others = np.arange(len(RAGGED.queries)) != row
    assert np.array_equal(found.out[others], before.out[others])
    assert np.array_equal(found.log_sum_exp[others], before.log_sum_exp[others])
    if np.isfinite(value):
        expected = spoilt.expected()
        assert np.abs(expected.log_sum_exp[row] - before.log_sum_exp[row]).max() > 64
        np.testing.assert_allclose(found.out[row], expected.out[row], atol=TOLERANCE, rtol=2**-7)
        np.testing.assert_allclose(found.log_sum_exp[row], expected.log_sum_exp[row], rtol=1e-5)
    else:
        assert np.isnan(np.asarray(found.out[row], np.float32)).all()


def test_an_item_whose_prefix_outweighs_itself_agrees_with_float64() -> None:
    """Rows take their reference from their own item, whose keys are small, and keys of the prefix are large."""
    items = replace(STEP.items, keys=(STEP.items.keys * 0.01).astype(BF16))
    step = Extension(items, replace(STEP.prefixes, pool_keys=(STEP.prefixes.pool_keys * 40).astype(BF16)))
    found, expected = attend_extension(step), step.expected()
    np.testing.assert_allclose(found.log_sum_exp, expected.log_sum_exp, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found.out, expected.out, atol=TOLERANCE, rtol=2**-7)


@pytest.mark.slow
def test_a_row_of_a_packed_sequence_that_sees_nothing_is_zero() -> None:
    ranges = segments(300, [20, 1, 100, 33, 7], 500)
    ranges[310] = 0
    found = AttentionOutput(*PACKED(*Packed.of(ranges).arguments))
    assert not np.asarray(found.out)[[310, 499]].any()
    assert np.isneginf(np.asarray(found.log_sum_exp)[[310, 499]]).all()
