"""Fills whole steps with extensions: items of several prefixes in one step, or pieces of several prefixes in one step.

A step has tiles of rows, and a tile belongs to one prefix. The rows of a prefix's items are dense: only its last tile
may have padding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.forward import Extension
from model.whole_steps.shape import StepShape
from scoring.planning.estimates import slot_rows

SIZE = 2**32  # more than the rows of a step's slots
LOOK_AHEAD = 16
"""Prefixes of which a step leaves items, at most. While it has free tiles, it looks at the items of one more."""


def filled(extensions: Sequence[Extension], shape: StepShape) -> Iterator[tuple[Extension, ...]]:
    """Fill steps with extensions, none of which may be longer than a step.

    Steps of pieces come first, in the order given, because the pieces of a prefix see those before them. A step of
    items takes as many items of the first prefix as fit, then of the next one, until it has no free tile. Items that
    are read at several tokens come last.
    """
    items = [one for one in extensions if not len(one.stored)]
    yield from _filled_with_pieces([one for one in extensions if len(one.stored)], shape)
    yield from _filled_with_items([one for one in items if one.read <= 1], shape)
    yield from _filled_with_items([one for one in items if one.read > 1], shape)


def _filled_with_pieces(pieces: Sequence[Extension], shape: StepShape) -> Iterator[tuple[Extension, ...]]:
    together: list[Extension] = []
    free = shape.tiles
    for piece in pieces:
        tiles = -(-len(piece.tokens) // shape.tile_rows)
        if tiles > free:
            yield tuple(together)
            together, free = [], shape.tiles
        together.append(piece)
        free -= tiles
    if together:
        yield tuple(together)


def _filled_with_items(items: Sequence[Extension], shape: StepShape) -> Iterator[tuple[Extension, ...]]:
    of_prefixes: dict[int | None, list[Extension]] = defaultdict(list)
    for item in items:
        of_prefixes[prefix_of(item)].append(item)
    coming, waiting = iter(of_prefixes.values()), list[_Waiting]()
    while True:
        room, together, tried = _Room(shape), list[Extension](), 0
        while room.tiles and room.items and tried < LOOK_AHEAD:
            if tried == len(waiting):
                another = next(coming, None)
                if another is None:
                    break
                waiting.append(_Waiting.of(another))
            together += waiting[tried].take(room)
            if waiting[tried].left:
                tried += 1
            else:
                del waiting[tried]
        if not together:
            return
        yield tuple(together)


def prefix_of(item: Extension) -> int | None:
    """Return what tells the prefix of an item from others in the same step; None if it sees none."""
    return id(item.table) if item.start else None


def slots_of(item: Extension) -> int:
    """Return the rows of all slots of an item: of what it has without its tails, and of each tail behind that."""
    stem = len(item.tokens) - sum(item.tails)
    return slot_rows(stem) + sum(slot_rows(stem + tail) for tail in item.tails)


class _Room:
    """What is still free in a step."""

    def __init__(self, shape: StepShape) -> None:
        self.tile_rows = shape.tile_rows
        self.tiles, self.items, self.slot_rows = shape.tiles, shape.max_items, shape.slot_rows


@dataclass(slots=True, eq=False)
class _Waiting:
    """The items of one prefix that no step has taken yet, the longest first. The slots of each fit into a step."""

    items: Sequence[Extension]
    order: npt.NDArray[np.int64]  # of the items, by size; those of one size keep their order
    left: dict[tuple[int, int], tuple[int, int]]
    """By size, which is the tokens of an item and the rows of its slots, descending: where in ``order`` its items begin
    and end."""

    @classmethod
    def of(cls, items: Sequence[Extension]) -> _Waiting:
        # A size as one number, because NumPy sorts pairs slowly.
        sizes = np.array([len(item.tokens) * SIZE + slots_of(item) for item in items])
        order = np.argsort(-sizes, kind="stable")
        distinct, counts = np.unique(sizes, return_counts=True)
        distinct, counts = distinct[::-1], counts[::-1]
        stops = np.cumsum(counts)
        bounds = zip((stops - counts).tolist(), stops.tolist(), strict=True)
        return cls(items, order, dict(zip((divmod(size, SIZE) for size in distinct.tolist()), bounds, strict=True)))

    def take(self, room: _Room) -> list[Extension]:
        """Return the items that go into a step, by first fit decreasing, and subtract the room that they take."""
        rows, taken = room.tiles * room.tile_rows, list[Extension]()
        for (length, slots), (begin, end) in list(self.left.items()):
            count = min(end - begin, rows // length, room.items, room.slot_rows // slots)
            if not count:
                continue
            taken += [self.items[number] for number in self.order[begin : begin + count].tolist()]
            rows, room.items, room.slot_rows = rows - count * length, room.items - count, room.slot_rows - count * slots
            if begin + count == end:
                del self.left[length, slots]
            else:
                self.left[length, slots] = begin + count, end
        room.tiles = rows // room.tile_rows
        return taken
