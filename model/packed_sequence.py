"""Packed sequences: several groups in one sequence, each prefix once and its items behind it.

Token ``q`` sees token ``k`` if ``prefix_start[q] <= k < prefix_end[q] or segment_start[q] <= k <= q``. The segment of a
prefix's token begins where the prefix does, and its prefix range is empty; an item's token sees its prefix, and the
earlier tokens of its own item. An item's positions continue those of its prefix, wherever it lies in the sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from model.architecture.windows import Window
from model.rows import Row
from scoring.layout import TokenIds


@dataclass(slots=True, eq=False)
class PackedSequence:
    """A sequence under construction. Its lists hold int32 arrays, whose concatenation has S tokens."""

    tokens: list[TokenIds] = field(default_factory=list)  # [S]
    positions: list[TokenIds] = field(default_factory=list)  # [S]
    ranges: list[TokenIds] = field(default_factory=list)  # [S, 2, 2]: each token's prefix range, then its segment
    rows: list[Row] = field(default_factory=list)
    logit_positions: list[int] = field(default_factory=list)  # one a row
    length: int = 0

    def add_prefix(self, prefix: TokenIds) -> int:
        """Append a prefix; return where it begins."""
        begin = self.length
        self._add(prefix, 0, (0, 0), begin)
        return begin

    def add_row(self, row: Row, prefix_begin: int) -> None:
        """Append an item. An empty item is scored at the last token of its prefix."""
        end = prefix_begin + row.begin
        if len(row.tokens):
            self._add(row.tokens, row.begin, (prefix_begin, end), self.length)
        self.rows.append(row)
        self.logit_positions.append(self.length - 1 if len(row.tokens) else end - 1)

    def _add(self, tokens: TokenIds, position: int, prefix_range: tuple[int, int], segment_begin: int) -> None:
        offsets = np.arange(len(tokens), dtype=np.int32)
        ranges = np.empty((len(tokens), 2, 2), np.int32)
        ranges[:, 0] = prefix_range
        ranges[:, 1, 0] = segment_begin
        ranges[:, 1, 1] = self.length + offsets + 1
        self.tokens.append(tokens)
        self.positions.append(position + offsets)
        self.ranges.append(ranges)
        self.length += len(tokens)

    def arrays(self, size: int, logit_rows: int, window: Window | None = None) -> tuple[TokenIds, ...]:
        """Return tokens and positions [size], ranges [size, 2, 2] and logit positions [logit_rows].

        They are padded with tokens that see nothing. Where there is a window, the ranges within it come behind those of
        other layers.
        """
        tokens, positions = np.zeros(size, np.int32), np.zeros(size, np.int32)
        ranges, logit_positions = np.zeros((size, 2, 2), np.int32), np.zeros(logit_rows, np.int32)
        tokens[: self.length] = np.concatenate(self.tokens)
        positions[: self.length] = np.concatenate(self.positions)
        ranges[: self.length] = np.concatenate(self.ranges)
        logit_positions[: len(self.logit_positions)] = self.logit_positions
        if window is None:
            return tokens, positions, ranges, logit_positions
        within = ranges.copy()
        # How many tokens a token sees of its own segment, and of its prefix.
        own = np.minimum(ranges[:, 1, 1] - ranges[:, 1, 0], window.size)
        within[:, 1, 0] = ranges[:, 1, 1] - own
        within[:, 0, 0] = np.maximum(ranges[:, 0, 0], ranges[:, 0, 1] - (window.size - own))
        return tokens, positions, ranges, within, logit_positions


def pack_sequences(
    groups: Iterable[tuple[TokenIds, Sequence[Row]]], max_tokens: int, max_rows: int
) -> Iterator[PackedSequence]:
    """Fill sequences of at most ``max_tokens`` tokens and ``max_rows`` items with groups, in order.

    groups: a prefix and its rows each; a prefix and any one of its items must fit into a sequence. Where a group's rows
    continue in the next sequence, its prefix is repeated there. Rows that find their prefix in the sequence are
    credited with its tokens as cached.
    """
    sequence = PackedSequence()
    for prefix, rows in groups:
        begin: int | None = None
        for row in rows:
            needed = len(row.tokens) + (0 if begin is not None else len(prefix))
            if sequence.rows and (sequence.length + needed > max_tokens or len(sequence.rows) == max_rows):
                yield sequence
                sequence, begin = PackedSequence(), None
            if begin is None:
                begin = sequence.add_prefix(prefix)
            else:
                row.buffer.cached_tokens += row.begin
            sequence.add_row(row, begin)
    if sequence.rows:
        yield sequence
