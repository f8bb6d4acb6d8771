"""Several groups in one sequence: each prefix once, its items behind it, and for every token what it sees.

``visible(row, k) = prefix_start[row] <= k < prefix_end[row] or segment_start[row] <= k <= row``. A prefix token has an
empty prefix range, and its segment begins where its own prefix does; an item's token sees its prefix and the earlier
tokens of its own item. Positions go on from the prefix, whatever lies between in the sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from model.score_buffer import Row
from scoring.layout import TokenIds


@dataclass(slots=True, eq=False)
class Packed:
    """A sequence under construction. All lists are of int32 arrays, to be joined.

    tokens, positions: [S]; ranges: [S, 2, 2], prefix range then own range; rows and the places they are read at.
    """

    tokens: list[TokenIds] = field(default_factory=list)
    positions: list[TokenIds] = field(default_factory=list)
    ranges: list[TokenIds] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    length: int = 0

    def put_prefix(self, prefix: TokenIds) -> int:
        """Append a prefix; returns where it begins."""
        begin = self.length
        self._put(prefix, 0, (0, 0), begin)
        return begin

    def put_row(self, row: Row, prefix_begin: int) -> None:
        """Append an item; an empty one is read off the last token of its prefix."""
        end = prefix_begin + row.prefix_end
        if len(row.tokens):
            self._put(row.tokens, row.prefix_end, (prefix_begin, end), self.length)
        self.rows.append(row)
        self.places.append(self.length - 1 if len(row.tokens) else end - 1)

    def _put(self, tokens: TokenIds, position: int, prefix_range: tuple[int, int], segment_begin: int) -> None:
        places = np.arange(len(tokens), dtype=np.int32)
        ranges = np.empty((len(tokens), 2, 2), np.int32)
        ranges[:, 0] = prefix_range
        ranges[:, 1, 0] = segment_begin
        ranges[:, 1, 1] = self.length + places + 1
        self.tokens.append(tokens)
        self.positions.append(position + places)
        self.ranges.append(ranges)
        self.length += len(tokens)

    def arrays(self, size: int, reads: int) -> tuple[TokenIds, TokenIds, TokenIds, TokenIds]:
        """tokens and positions [size], ranges [size, 2, 2], places [reads]: padded with tokens that see nothing."""
        tokens, positions = np.zeros(size, np.int32), np.zeros(size, np.int32)
        ranges, read = np.zeros((size, 2, 2), np.int32), np.zeros(reads, np.int32)
        tokens[: self.length] = np.concatenate(self.tokens)
        positions[: self.length] = np.concatenate(self.positions)
        ranges[: self.length] = np.concatenate(self.ranges)
        read[: len(self.places)] = self.places
        return tokens, positions, ranges, read


def pack(groups: Iterable[tuple[TokenIds, Sequence[Row]]], longest: int, most_rows: int) -> Iterator[Packed]:
    """Fill sequences of at most ``longest`` tokens and ``most_rows`` items, in order.

    groups: a prefix and its rows; a prefix whose rows go on in the next sequence is repeated there, and shared by all
    rows behind it but the first. Each prefix and item must fit into a sequence together.
    """
    packed = Packed()
    for prefix, rows in groups:
        begin: int | None = None
        for row in rows:
            needed = len(row.tokens) + (0 if begin is not None else len(prefix))
            if packed.rows and (packed.length + needed > longest or len(packed.rows) == most_rows):
                yield packed
                packed, begin = Packed(), None
            if begin is None:
                begin = packed.put_prefix(prefix)
            else:
                row.sheet.cached_tokens += row.prefix_end
            packed.put_row(row, begin)
    if packed.rows:
        yield packed
