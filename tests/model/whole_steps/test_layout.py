"""How items and pieces of prefixes are laid out in whole steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.forward import Extension
from model.whole_steps.filling import filled, slots_of
from model.whole_steps.layout import ItemStep, PrefillStep
from model.whole_steps.shape import StepShape
from tests.model.extensions import paths, shapes_with_tails, with_tails
from tests.model.whole_steps.runs import Prefix

LONGEST = 5  # blocks
BLOCKS = 40

shapes = st.builds(
    lambda tokens, tile_rows, of_block, max_items: StepShape(
        tokens, tile_rows, tile_rows * of_block, BLOCKS, LONGEST, max_items
    ),
    tokens=st.sampled_from([128, 256]),
    tile_rows=st.sampled_from([16, 32, 64]),
    of_block=st.sampled_from([1, 2]),
    max_items=st.sampled_from([5, 16, 64]),
)
lengths_of_prefixes = st.lists(st.lists(st.integers(1, 256), max_size=25), max_size=30)


def table(random: np.random.Generator) -> np.ndarray:
    return random.permutation(BLOCKS - 1)[:LONGEST].astype(np.int32)


def items(shape: StepShape, lengths: Sequence[Sequence[int]]) -> list[Extension]:
    """Items of several prefixes that see different parts of them, and whose token ids are all different."""
    random = np.random.default_rng(0)
    longest = LONGEST * shape.block_tokens
    ids = iter(range(1, 1 << 20))
    found = []
    for of_prefix in lengths:
        blocks = table(random)
        for length in of_prefix:
            tokens = np.array([next(ids) for _ in range(length)], np.int32)
            found.append(Extension(tokens, int(random.integers(1, longest + 1)), None, blocks))
    return found


Laid = tuple[tuple[Extension, ...], ItemStep]


def laid_out(shape: StepShape, asked: Sequence[Extension]) -> list[Laid]:
    """All steps, with their items."""
    return [(step, ItemStep.of(step, shape)) for step in filled(asked, shape)]


def fitting(lengths: Sequence[Sequence[int]], shape: StepShape) -> list[list[int]]:
    return [[min(length, shape.tokens) for length in of_prefix] for of_prefix in lengths]


def rows_of(laid: Laid) -> Iterator[tuple[Extension, slice]]:
    """The items of a step with their rows."""
    for item, last in zip(laid[0], laid[1].logit_positions.tolist(), strict=False):
        yield item, slice(last + 1 - len(item.tokens), last + 1)


@given(lengths=lengths_of_prefixes, shape=shapes)
def test_every_item_is_in_one_step_with_its_own_tokens_positions_and_prefix(
    lengths: list[list[int]], shape: StepShape
) -> None:
    asked = items(shape, fitting(lengths, shape))
    steps = laid_out(shape, asked)
    assert sorted(id(item) for in_step, _ in steps for item in in_step) == sorted(map(id, asked))
    for laid in steps:
        step = laid[1]
        assert len(step.tokens) == shape.tokens
        assert len(laid[0]) <= shape.max_items
        for item, rows in rows_of(laid):
            assert np.array_equal(step.tokens[rows], item.tokens)
            assert np.array_equal(step.positions[rows], item.start + np.arange(len(item.tokens)))
            assert (step.ends[rows] == item.start).all()
            for tile in {rows.start // shape.tile_rows, (rows.stop - 1) // shape.tile_rows}:
                assert np.array_equal(step.table[tile], item.table)


@given(lengths=lengths_of_prefixes, shape=shapes)
def test_no_tile_has_items_of_two_prefixes_and_no_row_has_two_items(lengths: list[list[int]], shape: StepShape) -> None:
    for laid in laid_out(shape, items(shape, fitting(lengths, shape))):
        owners, step = np.zeros(shape.tokens, np.int64), laid[1]
        for item, rows in rows_of(laid):
            assert not owners[rows].any()
            owners[rows] = id(item.table)
        for tile in owners.reshape(shape.tiles, -1):
            assert len(set(tile.tolist()) - {0}) <= 1
        padding = owners == 0
        assert not step.tokens[padding].any()
        assert not step.ends[padding].any()
        assert (step.item_slots[padding] == shape.slot_rows).all()


@given(lengths=lengths_of_prefixes, shape=shapes)
def test_counts_cover_what_the_rows_of_a_tile_see(lengths: list[list[int]], shape: StepShape) -> None:
    for _, step in laid_out(shape, items(shape, fitting(lengths, shape))):
        most = step.ends.reshape(shape.tiles, -1).max(axis=1)
        assert (step.counts * shape.block_tokens >= most).all()
        assert ((step.counts - 1) * shape.block_tokens < most).all()


@given(lengths=lengths_of_prefixes, shape=shapes)
def test_each_item_has_an_aligned_slot_that_no_other_item_touches(lengths: list[list[int]], shape: StepShape) -> None:
    for laid in laid_out(shape, items(shape, fitting(lengths, shape))):
        used, step = np.zeros(shape.slot_rows, np.bool_), laid[1]
        for item, rows in rows_of(laid):
            length, slot = len(item.tokens), 8
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


@given(asked=shapes_with_tails, shape=shapes)
def test_a_tail_has_a_slot_with_what_it_continues_and_itself_alone(
    asked: list[tuple[int, list[int]]], shape: StepShape
) -> None:
    blocks = table(np.random.default_rng(0))
    fit = [
        replace(extension, table=blocks)
        for extension in with_tails(asked)
        if len(extension.tokens) <= shape.tokens and slots_of(extension) <= shape.slot_rows
    ]
    for together, step in laid_out(shape, fit):
        slots = step.item_slots[step.item_slots < shape.slot_rows].tolist()
        assert len(set(slots)) == len(slots) == sum(len(extension.tokens) for extension in together)
        seen = [step.item_rows[step.item_begins[slot] : slot + 1] for slot in slots]
        found = [list(zip(step.tokens[rows].tolist(), step.positions[rows].tolist(), strict=True)) for rows in seen]
        wanted = [path for extension in together for path in paths(extension)]
        # Every token sees a beginning of such a path, and each path's last token sees all of it.
        assert all(any(path[: len(one)] == one for path in wanted) for one in found)
        assert all(path in found for path in wanted)


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
    assert len(list(filled(items(LARGE, lengths), LARGE))) == steps


def test_items_without_a_prefix_share_tiles() -> None:
    without = [Extension(np.ones(20, np.int32), 0, None, table(np.random.default_rng(n))) for n in range(102)]
    (together,) = filled(without, LARGE)
    assert ItemStep.of(together, LARGE).logit_positions.max() == 102 * 20 - 1


@given(lengths=st.lists(st.integers(1, 640), max_size=20), done=st.integers(0, 3), shape=shapes)
def test_every_token_of_a_prefix_is_computed_once_in_order_and_goes_to_its_place(
    lengths: list[int], done: int, shape: StepShape
) -> None:
    random = np.random.default_rng(0)
    prefixes = []
    for length in lengths:
        tokens = random.integers(1, 1 << 20, min(length, LONGEST * shape.block_tokens), np.int32)
        known = min(done, (len(tokens) - 1) // shape.block_tokens) * shape.block_tokens
        prefixes.append(Prefix(tokens, table(random), known))
    pieces = [piece for prefix in prefixes for piece in prefix.pieces(shape)]
    steps = list(filled(pieces, shape))
    assert [id(piece) for step in steps for piece in step] == list(map(id, pieces))
    written, places = [np.zeros(0, np.int32)], []
    for in_step in steps:
        step = PrefillStep.of(in_step, shape)
        assert len(step.tokens) == shape.tokens
        for tile, (block, at) in enumerate(step.places.tolist()):
            rows = slice(tile * shape.tile_rows, (tile + 1) * shape.tile_rows)
            length = int((step.ends[rows] > 0).sum())
            tokens, positions, ends = (part[rows] for part in (step.tokens, step.positions, step.ends))
            written.append(tokens[:length])
            assert not tokens[length:].any()
            if block == shape.spare_block:
                assert length == 0
                continue
            places.append((block, at))
            assert block == step.table[tile, positions[0] // shape.block_tokens]
            assert at == positions[0] % shape.block_tokens
            assert step.counts[tile] == -(-ends.max() // shape.block_tokens)
            assert np.array_equal(positions[:length], positions[0] + np.arange(length))
            assert np.array_equal(ends[:length], positions[:length] + 1)
        for piece, position in zip(in_step, step.logit_positions.tolist(), strict=False):
            assert step.positions[position] == piece.start + len(piece.tokens) - 1
            assert step.tokens[position] == piece.tokens[-1]
    assert places == [
        (int(prefix.table[begin // shape.block_tokens]), begin % shape.block_tokens)
        for prefix in prefixes
        for begin in range(prefix.done, len(prefix.tokens), shape.tile_rows)
    ]
    computed = [prefix.tokens[prefix.done :] for prefix in prefixes]
    assert np.array_equal(np.concatenate(written), np.concatenate([written[0], *computed]))
