"""Fills whole steps: items of several prefixes in one step, and pieces of several prefixes in one step.

A step has tiles of rows, and a tile belongs to one prefix. The rows of a prefix's items are dense: only its last tile
may have padding. All arrays are int32, in the order in which :mod:`model.whole_steps.programs` takes them; T, N, S and
n are those of :class:`model.whole_steps.shape.StepShape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from model.forward import Extension
from model.whole_steps.shape import SHORTEST_SLOT, StepShape
from scoring.layout import TokenIds

LOOK_AHEAD = 16
"""Prefixes that have items waiting, at most. While a step has free tiles, their items are tried in turn."""


@dataclass(frozen=True, slots=True, eq=False)
class ExtendStep:
    """A step of items, each behind its own prefix."""

    extensions: tuple[Extension, ...]  # the items, in the order of the logit positions
    tokens: TokenIds  # [T]
    positions: TokenIds  # [T]
    table: TokenIds  # [tiles, N]: the blocks of each tile's prefix
    counts: TokenIds  # [tiles]: how many of them its rows see
    ends: TokenIds  # [T]: how many tokens of the prefix each row sees
    item_rows: TokenIds  # [S]: this and the next two are a :class:`model.attention.contract.ItemSlots`
    item_begins: TokenIds  # [S]
    item_slots: TokenIds  # [T]
    logit_positions: TokenIds  # [n]: the last row of each item

    @property
    def arrays(self) -> tuple[TokenIds, ...]:
        """What :meth:`model.whole_steps.programs.WholeStepPrograms.extend` takes beside weights and pool."""
        tiles, items = (self.table, self.counts, self.ends), (self.item_rows, self.item_begins, self.item_slots)
        return self.tokens, self.positions, *tiles, *items, self.logit_positions


@dataclass(frozen=True, slots=True, eq=False)
class Behind:
    """Items of one prefix that wait for a step."""

    table: TokenIds  # int32 [N]: the blocks of the prefix; anything if no item sees any of it
    extensions: Sequence[Extension]  # at most as long as a step each


@dataclass(slots=True, eq=False)
class _Waiting:
    """The items of one prefix that no step has taken yet, the longest first."""

    behind: Behind
    lengths: npt.NDArray[np.int64]  # of all items, in tokens
    order: npt.NDArray[np.int64]  # of the items, by length; those of one length keep their order
    left: dict[int, tuple[int, int]]  # by length, descending: where in ``order`` its items begin and end

    @classmethod
    def of(cls, behind: Behind) -> _Waiting:
        lengths = np.array([len(extension.tokens) for extension in behind.extensions], np.int64)
        order = np.argsort(-lengths, kind="stable")
        distinct, counts = np.unique(lengths, return_counts=True)
        distinct, counts = distinct[::-1], counts[::-1]
        stops = np.cumsum(counts)
        bounds = zip((stops - counts).tolist(), stops.tolist(), strict=True)
        return cls(behind, lengths, order, dict(zip(distinct.tolist(), bounds, strict=True)))

    def take(self, room: _Room) -> npt.NDArray[np.int64]:
        """Return the numbers of the items that go into a step, by first fit decreasing, and subtract their room."""
        rows, taken = room.tiles * room.shape.tile_rows, [np.zeros(0, np.int64)]
        before = rows
        for length, (begin, end) in list(self.left.items()):
            slot = int(_slot_rows(np.array(length)))
            count = min(end - begin, rows // length, room.items, room.slot_rows // slot)
            if not count:
                continue
            taken.append(self.order[begin : begin + count])
            rows, room.items, room.slot_rows = rows - count * length, room.items - count, room.slot_rows - count * slot
            if begin + count == end:
                del self.left[length]
            else:
                self.left[length] = begin + count, end
        room.tiles -= -(-(before - rows) // room.shape.tile_rows)
        return np.concatenate(taken)


@dataclass(slots=True)
class _Room:
    """What is still free in a step."""

    shape: StepShape
    tiles: int
    items: int
    slot_rows: int


def extend_steps(work: Iterable[Behind], shape: StepShape) -> Iterator[ExtendStep]:
    """Fill steps with the items of prefixes, in order. ``work`` is read as steps need it.

    A step takes as many items of the first prefix as fit, then of the next one, until it has no free tile. No item may
    be longer than a step.
    """
    coming, waiting = iter(work), list[_Waiting]()
    while True:
        room = _Room(shape, shape.tiles, shape.max_items, shape.slot_rows)
        taken: list[tuple[Behind, npt.NDArray[np.int64]]] = []
        tried = 0
        while room.tiles and room.items and tried < LOOK_AHEAD:
            if tried == len(waiting):
                waiting += map(_Waiting.of, islice(coming, 1))
                if tried == len(waiting):
                    break
            numbers = waiting[tried].take(room)
            if len(numbers):
                taken.append((waiting[tried].behind, numbers))
            if waiting[tried].left:
                tried += 1
            else:
                del waiting[tried]
        if not taken:
            return
        yield _extend_step(taken, shape)


def _extend_step(taken: Sequence[tuple[Behind, npt.NDArray[np.int64]]], shape: StepShape) -> ExtendStep:
    """Lay out the items, by their numbers, that a step has taken of prefixes."""
    table, extensions = np.zeros((shape.tiles, shape.longest), np.int32), list[Extension]()
    starts = list[npt.NDArray[np.int64]]()  # the first row of each item
    tile = 0
    for behind, numbers in taken:
        items = [behind.extensions[number] for number in numbers.tolist()]
        stops = np.cumsum([len(item.tokens) for item in items])
        starts.append(tile * shape.tile_rows + np.concatenate([[0], stops[:-1]]))
        tiles = -(-int(stops[-1]) // shape.tile_rows)
        table[tile : tile + tiles] = behind.table
        tile += tiles
        extensions += items
    start = np.concatenate(starts)
    length = np.array([len(item.tokens) for item in extensions])
    prefix_end = np.array([item.start for item in extensions])
    slot, slot_length = np.empty_like(start), _slot_rows(length)
    longest_first = np.argsort(-slot_length, kind="stable")  # so that each slot begins at a multiple of its length
    slot[longest_first] = np.cumsum(slot_length[longest_first]) - slot_length[longest_first]
    # From here on, for each row of an item: where it stands in the step, and where in its item.
    offset = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    row, row_slot = np.repeat(start, length) + offset, np.repeat(slot, length) + offset
    ends = _filled(shape.tokens, row, np.repeat(prefix_end, length))
    return ExtendStep(
        tuple(extensions),
        _filled(shape.tokens, row, np.concatenate([item.tokens for item in extensions])),
        _filled(shape.tokens, row, np.repeat(prefix_end, length) + offset),
        table,
        _block_counts(ends, shape),
        ends,
        _filled(shape.slot_rows, row_slot, row),
        _filled(shape.slot_rows, row_slot, np.repeat(slot, length), padding=shape.slot_rows),
        _filled(shape.tokens, row, row_slot, padding=shape.slot_rows),
        _filled(shape.max_items, np.arange(len(start)), start + length - 1),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Unfilled:
    """A prefix whose keys and values are to be computed."""

    tokens: TokenIds  # int32 [length]
    table: TokenIds  # int32 [N]: its blocks
    done: int = 0  # how many of its first tokens are in the pool: whole blocks


@dataclass(frozen=True, slots=True, eq=False)
class PrefillStep:
    """A step of tiles of prefixes, those of one prefix in order."""

    finished: tuple[Unfilled, ...]  # whose last token is in this step, in the order of the logit positions
    tokens: TokenIds  # [T]
    positions: TokenIds  # [T]
    table: TokenIds  # [tiles, N]: the blocks of each tile's prefix
    counts: TokenIds  # [tiles]: how many of them its rows see
    ends: TokenIds  # [T]: how many tokens of the prefix each row sees, itself among them
    places: TokenIds  # [tiles, 2]: the block that a tile's keys and values go to, and where in it they begin
    logit_positions: TokenIds  # [tiles]: the last rows of finished prefixes

    @property
    def arrays(self) -> tuple[TokenIds, ...]:
        """What :meth:`model.whole_steps.programs.WholeStepPrograms.prefill` takes beside weights and pool."""
        tiles = self.table, self.counts, self.ends
        return self.tokens, self.positions, *tiles, self.places, self.logit_positions


def prefill_steps(prefixes: Iterable[Unfilled], shape: StepShape) -> Iterator[PrefillStep]:
    """Fill steps with tiles of prefixes, in order. ``prefixes`` is read as steps need it."""
    tiles = (
        (prefix, begin) for prefix in prefixes for begin in range(prefix.done, len(prefix.tokens), shape.tile_rows)
    )
    while together := list(islice(tiles, shape.tiles)):
        yield _prefill_step(together, shape)


def _prefill_step(tiles: Sequence[tuple[Unfilled, int]], shape: StepShape) -> PrefillStep:
    """Lay out tiles of prefixes, each given by its first token."""
    rows = shape.tile_rows
    tokens, ends = np.zeros(shape.tokens, np.int32), np.zeros(shape.tokens, np.int32)
    table, places = np.zeros((shape.tiles, shape.longest), np.int32), np.zeros((shape.tiles, 2), np.int32)
    places[:, 0] = shape.spare_block
    finished, logit_positions = list[Unfilled](), list[int]()
    for number, (prefix, begin) in enumerate(tiles):
        piece = prefix.tokens[begin : begin + rows]
        of_piece = slice(number * rows, number * rows + len(piece))
        tokens[of_piece] = piece
        ends[of_piece] = np.arange(begin + 1, begin + len(piece) + 1)
        table[number] = prefix.table
        places[number] = prefix.table[begin // shape.block_tokens], begin % shape.block_tokens
        if begin + len(piece) == len(prefix.tokens):
            finished.append(prefix)
            logit_positions.append(of_piece.stop - 1)
    return PrefillStep(
        tuple(finished),
        tokens,
        np.maximum(ends - 1, 0),
        table,
        _block_counts(ends, shape),
        ends,
        places,
        _filled(shape.tiles, slice(len(finished)), np.array(logit_positions, np.int32)),
    )


def _slot_rows(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the rows of the slots of items: see :class:`model.attention.contract.ItemSlots`."""
    powers: npt.NDArray[np.int64] = 1 << np.ceil(np.log2(lengths)).astype(np.int64)
    return np.maximum(SHORTEST_SLOT, powers)


def _block_counts(ends: TokenIds, shape: StepShape) -> TokenIds:
    """Return how many blocks the rows of each tile see: [tiles]."""
    seen: TokenIds = ends.reshape(shape.tiles, -1).max(axis=1)
    return -(-seen // shape.block_tokens)


def _filled(size: int, at: npt.NDArray[np.int64] | slice, values: npt.NDArray[Any], padding: int = 0) -> TokenIds:
    """Return int32 [size] with values at some indices, and ``padding`` elsewhere."""
    array = np.full(size, padding, np.int32)
    array[at] = values
    return array
