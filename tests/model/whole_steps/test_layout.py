"""How items and pieces of prefixes are laid out in whole steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.forward import Extension
from model.whole_steps.layout import Behind, ExtendStep, PrefillStep, Unfilled, extend_steps, prefill_steps
from model.whole_steps.shape import SHORTEST_SLOT, StepShape

LONGEST = 5  # blocks
BLOCKS = 40

shapes = st.builds(
    lambda tokens, tile_rows, of_block, max_items: StepShape(
        tokens, tile_rows, tile_rows * of_block, BLOCKS, LONGEST, max_items
    ),
    tokens=st.sampled_from([64, 128, 256]),
    tile_rows=st.sampled_from([16, 32, 64]),
    of_block=st.sampled_from([1, 2]),
    max_items=st.sampled_from([5, 16, 64]),
)
lengths_of_prefixes = st.lists(st.lists(st.integers(1, 256), max_size=25), max_size=30)


def table(random: np.random.Generator) -> np.ndarray:
    return random.permutation(BLOCKS - 1)[:LONGEST].astype(np.int32)


def behind(shape: StepShape, lengths: Sequence[Sequence[int]]) -> list[Behind]:
    """Items of several prefixes that see different parts of them, and whose token ids are all different."""
    random = np.random.default_rng(0)
    longest = LONGEST * shape.block_tokens
    ids = iter(range(1, 1 << 20))
    return [
        Behind(
            table(random),
            [
                Extension(np.array([next(ids) for _ in range(length)], np.int32), int(random.integers(longest + 1)))
                for length in of_prefix
            ],
        )
        for of_prefix in lengths
    ]


def fitting(lengths: Sequence[Sequence[int]], shape: StepShape) -> list[list[int]]:
    return [[min(length, shape.tokens) for length in of_prefix] for of_prefix in lengths]


def rows_of(step: ExtendStep, number: int) -> slice:
    """The rows of an item in its step."""
    stop = int(step.logit_positions[number]) + 1
    return slice(stop - len(step.extensions[number].tokens), stop)


@given(lengths=lengths_of_prefixes, shape=shapes)
def test_every_item_is_in_one_step_with_its_own_tokens_positions_and_prefix(
    lengths: list[list[int]], shape: StepShape
) -> None:
    work = behind(shape, fitting(lengths, shape))
    owner = {id(item): one for one in work for item in one.extensions}
    steps = list(extend_steps(work, shape))
    laid = [item for step in steps for item in step.extensions]
    assert sorted(map(id, laid)) == sorted(owner)
    for step in steps:
        assert len(step.tokens) == shape.tokens
        assert len(step.extensions) <= shape.max_items
        for number, item in enumerate(step.extensions):
            rows = rows_of(step, number)
            assert np.array_equal(step.tokens[rows], item.tokens)
            assert np.array_equal(step.positions[rows], item.start + np.arange(len(item.tokens)))
            assert (step.ends[rows] == item.start).all()
            for tile in {rows.start // shape.tile_rows, (rows.stop - 1) // shape.tile_rows}:
                assert np.array_equal(step.table[tile], owner[id(item)].table)


@given(lengths=lengths_of_prefixes, shape=shapes)
def test_no_tile_has_items_of_two_prefixes_and_no_row_has_two_items(lengths: list[list[int]], shape: StepShape) -> None:
    work = behind(shape, fitting(lengths, shape))
    owner = {id(item): number for number, one in enumerate(work) for item in one.extensions}
    for step in extend_steps(work, shape):
        owners = np.full(shape.tokens, -1)
        for number, item in enumerate(step.extensions):
            assert (owners[rows_of(step, number)] == -1).all()
            owners[rows_of(step, number)] = owner[id(item)]
        for tile in owners.reshape(shape.tiles, -1):
            assert len(set(tile.tolist()) - {-1}) <= 1
        padding = owners == -1
        assert not step.tokens[padding].any()
        assert not step.ends[padding].any()
        assert (step.item_slots[padding] == shape.slot_rows).all()


@given(lengths=lengths_of_prefixes, shape=shapes)
def test_counts_cover_what_the_rows_of_a_tile_see(lengths: list[list[int]], shape: StepShape) -> None:
    for step in extend_steps(behind(shape, fitting(lengths, shape)), shape):
        most = step.ends.reshape(shape.tiles, -1).max(axis=1)
        assert (step.counts * shape.block_tokens >= most).all()
        assert ((step.counts - 1) * shape.block_tokens < most).all()


@given(lengths=lengths_of_prefixes, shape=shapes)
def test_each_item_has_an_aligned_slot_that_no_other_item_touches(lengths: list[list[int]], shape: StepShape) -> None:
    for step in extend_steps(behind(shape, fitting(lengths, shape)), shape):
        used = np.zeros(shape.slot_rows, np.bool_)
        for number, item in enumerate(step.extensions):
            length, rows = len(item.tokens), rows_of(step, number)
            slot = SHORTEST_SLOT
            while slot < length:
                slot *= 2
            begin = int(step.item_slots[rows.start])
            assert begin % slot == 0
            assert np.array_equal(step.item_slots[rows], begin + np.arange(length))
            assert np.array_equal(step.item_rows[begin : begin + length], np.arange(rows.start, rows.stop))
            assert (step.item_begins[begin : begin + length] == begin).all()
            assert not used[begin : begin + slot].any()
            assert (step.item_begins[begin + length : begin + slot] == shape.slot_rows).all()
            used[begin : begin + slot] = True
        assert (step.item_begins[~used] == shape.slot_rows).all()


LARGE = StepShape(2_048, 128, 256, BLOCKS, LONGEST, 512)


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [
        ([[20] * 500], 5),  # 102 items a step
        ([[20] * 10] * 20, 3),  # two tiles a prefix, and sixteen tiles a step
        ([[3]] * 40, 3),  # a tile each
        ([[1] * 513], 2),  # 512 items are the most
        ([[1_500], [1_500], [100], [100]], 2),  # those that still fit are tried while a long one waits
        ([[], [1]], 1),
        ([[]], 0),
        ([], 0),
    ],
)
def test_steps_are_full(lengths: list[list[int]], steps: int) -> None:
    assert len(list(extend_steps(behind(LARGE, lengths), LARGE))) == steps


def test_prefixes_are_read_no_earlier_than_their_items_are_needed() -> None:
    read: list[int] = []

    def work() -> Iterator[Behind]:
        for number, one in enumerate(behind(LARGE, [[20] * 90] * 50)):
            read.append(number)
            yield one

    steps = extend_steps(work(), LARGE)
    assert len(next(steps).extensions) == 90 + 128 // 20
    assert read == [0, 1]


@given(lengths=st.lists(st.integers(1, 640), max_size=20), done=st.integers(0, 3), shape=shapes)
def test_every_token_of_a_prefix_is_computed_once_in_order_and_goes_to_its_place(
    lengths: list[int], done: int, shape: StepShape
) -> None:
    random = np.random.default_rng(0)
    longest = LONGEST * shape.block_tokens
    prefixes = []
    for length in lengths:
        tokens = random.integers(1, 1 << 20, min(length, longest), np.int32)
        known = min(done, (len(tokens) - 1) // shape.block_tokens) * shape.block_tokens
        prefixes.append(Unfilled(tokens, table(random), known))
    written: dict[tuple[int, int], np.ndarray] = {}
    finished: list[Unfilled] = []
    places: list[tuple[int, int]] = []
    for step in prefill_steps(prefixes, shape):
        assert len(step.tokens) == shape.tokens
        for tile, (block, at) in enumerate(step.places.tolist()):
            rows = slice(tile * shape.tile_rows, (tile + 1) * shape.tile_rows)
            if block == shape.spare_block:
                assert not step.ends[rows].any()
                assert not step.tokens[rows].any()
                continue
            places.append((block, at))
            assert block == step.table[tile, step.positions[rows][0] // shape.block_tokens]
            assert at == step.positions[rows][0] % shape.block_tokens
            assert step.counts[tile] == -(-step.ends[rows].max() // shape.block_tokens)
            length = int((step.ends[rows] > 0).sum())
            assert np.array_equal(step.ends[rows][:length], step.positions[rows][:length] + 1)
            assert not step.tokens[rows][length:].any()
        for number, prefix in enumerate(step.finished):
            position = step.logit_positions[number]
            assert step.ends[position] == len(prefix.tokens)
            assert step.tokens[position] == prefix.tokens[-1]
        finished += step.finished
        _note(step, shape, written)
    assert list(map(id, finished)) == list(map(id, prefixes))
    expected = [
        (int(prefix.table[begin // shape.block_tokens]), begin % shape.block_tokens)
        for prefix in prefixes
        for begin in range(prefix.done, len(prefix.tokens), shape.tile_rows)
    ]
    assert places == expected
    computed = np.concatenate([np.zeros(0, np.int32), *written.values()])
    asked = np.concatenate([np.zeros(0, np.int32), *(prefix.tokens[prefix.done :] for prefix in prefixes)])
    assert np.array_equal(computed, asked)


def _note(step: PrefillStep, shape: StepShape, written: dict[tuple[int, int], np.ndarray]) -> None:
    """Keep the tokens of each tile of a step, in the order of tiles."""
    for tile in range(shape.tiles):
        rows = slice(tile * shape.tile_rows, (tile + 1) * shape.tile_rows)
        written[len(written), tile] = step.tokens[rows][step.ends[rows] > 0]
