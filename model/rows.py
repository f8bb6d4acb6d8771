"""What the engine computes at once: rows, and branches that rows are behind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from model.score_buffer import Places, ScoreBuffer
from scoring.layout import TokenIds

NO_TOKENS: TokenIds = np.zeros(0, np.int32)
ONE: npt.NDArray[np.int64] = np.ones(1, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Tokens behind a prefix, some of which are read. A row without tokens is read at the last token that it sees."""

    tokens: TokenIds  # int32 [length]
    begin: int  # tokens of the prefix that it sees
    buffer: ScoreBuffer  # where what is read goes
    places: Places
    """Where in the buffer: the number of an item, or of targets in the order of the tokens that are read for them."""
    counts: npt.NDArray[np.int64] = field(
        default_factory=lambda: ONE
    )  # for how many places each token is read, [read]; its last tokens are read
    tails: tuple[int, ...] = ()  # lengths of its tails: see :class:`model.forward.Extension`

    @property
    def read(self) -> int:
        """How many of its tokens are read."""
        return len(self.counts)

    def piece(self, first: int, count: int) -> Row:
        """Return what so many of the tokens that are read, from the number ``first`` on, are read for."""
        stops = np.cumsum([0, *self.counts.tolist()])
        places = self.places[stops[first] : stops[first + count]]
        return replace(self, places=places, counts=self.counts[first : first + count])


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A query and an item that become a prefix of their own, which labels continue."""

    tokens: TokenIds  # of query and item, int32 [length]
    begin: int  # how many of them are the query's
    end: Row  # what its last token is read for; it has no tokens of its own
    rows: tuple[Row, ...]  # behind the branch: all targets of a label but the last one


def item_rows(buffer: ScoreBuffer) -> list[Row]:
    """Return the items of a chunk as rows, each behind what it sees of the prefix."""
    rows = buffer.chunk.rows
    stops = np.cumsum(rows.lengths).tolist()
    return [
        Row(rows.tokens[stop - length : stop], begin, buffer, np.array([number]))
        for number, (stop, length, begin) in enumerate(
            zip(stops, rows.lengths.tolist(), rows.prefix_ends.tolist(), strict=True)
        )
    ]


def whole(row: Row, prefix: TokenIds) -> Row:
    """Return a row with the prefix that it sees as tokens of its own."""
    return replace(row, tokens=np.concatenate([prefix[: row.begin], row.tokens]), begin=0)
