"""Lay out a cut: the tokens of its rows and branches, and where what is read of them goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from model.rows import NO_TOKENS, ONE, Branch, Row
from model.score_buffer import ScoreBuffer
from scoring.layout import TokenIds
from scoring.planning.cut import Cut
from scoring.planning.lengths import Indices


@dataclass(frozen=True, slots=True, eq=False)
class LaidOut:
    """The rows and branches of one choice of a cut."""

    rows: list[Row]  # behind the query, or behind nothing
    branches: list[Branch]


def lay_out(cut: Cut, prefix: TokenIds, buffers: Sequence[ScoreBuffer]) -> list[LaidOut]:
    """Return what is computed for each choice of a cut. buffers: of the chunks whose items it has, in order."""
    return _Layout(cut, prefix, buffers).of_choices()


class _Layout:
    """Lays out one cut. Items and labels are numbered through all chunks of the cut."""

    def __init__(self, cut: Cut, prefix: TokenIds, buffers: Sequence[ScoreBuffer]) -> None:
        self._cut = cut
        self._prefix = prefix
        self._buffers = buffers
        rows = [buffer.chunk.rows for buffer in buffers]
        self._chunk_of = np.repeat(np.arange(len(rows)), [len(one) for one in rows]).tolist()
        self._own = [part for one in rows for part in _split(one.tokens, one.lengths)]
        self._ends: list[int] = cut.group.prefix_ends.tolist()

    def of_choices(self) -> list[LaidOut]:
        """Return what is computed for each choice."""
        cut = self._cut
        found = [LaidOut([], []) for _ in cut.choices]
        choices = cut.choice_of.tolist()
        rows = self._items() if cut.group.labels is None else self._labels()
        behind: dict[int, list[Row]] = {}
        for row, item, branch in zip(rows, cut.rows.items.tolist(), cut.rows.branches.tolist(), strict=False):
            if branch < 0:
                found[choices[item]].rows.append(row)
            else:
                behind.setdefault(branch, []).append(row)
        ends = rows[len(cut.rows) :]
        branches = (cut.branches.items.tolist(), cut.branches.begins.tolist(), cut.branches.ends.tolist())
        for number, (item, begin, stop) in enumerate(zip(*branches, strict=True)):
            tokens = self._between(item, 0, stop)
            branch = Branch(tokens, begin, ends[number], tuple(behind.get(number, ())))
            found[choices[item]].branches.append(branch)
        return found

    def _items(self) -> list[Row]:
        """Return the rows of items that are read at their ends for labels of one token."""
        rows, found = self._cut.rows, list[Row]()
        places = [np.arange(len(buffer.chunk.rows))[:, None] for buffer in self._buffers]
        of_items = [place for part in places for place in part]
        for item, begin in zip(rows.items.tolist(), rows.begins.tolist(), strict=True):
            tokens = self._own[item] if begin == self._ends[item] else self._between(item, begin, None)
            found.append(Row(tokens, begin, self._buffers[self._chunk_of[item]], of_items[item]))
        return found

    def _labels(self) -> list[Row]:
        """Return the rows of labels, and behind them what is read at the end of each branch."""
        cut, rows, branches = self._cut, self._cut.rows, self._cut.branches
        assert cut.group.labels is not None
        firsts, targets = self._targets()
        nodes = len(rows) + len(branches)
        ends, tails = _by_number(cut.first_reads, nodes), _by_number(cut.tail_rows, nodes)
        lengths = cut.group.labels.targets.tolist()
        items = [*rows.items.tolist(), *branches.items.tolist()]
        begins = [*rows.begins.tolist(), *branches.ends.tolist()]
        stops = [*rows.ends.tolist(), *branches.ends.tolist()]
        shares = [*rows.shares.tolist(), *[False] * len(branches)]
        found = list[Row]()
        for node, (item, begin, stop) in enumerate(zip(items, begins, stops, strict=True)):
            buffer, chunk = self._buffers[self._chunk_of[item]], self._chunk_of[item]
            at_end, of_tails = firsts[ends[node]], tails[node].tolist()
            parts = [self._between(item, begin, stop)] if stop > begin else []
            places, counts = [at_end], [len(at_end)] if len(at_end) else []
            tail_lengths = [lengths[label] - 1 for label in of_tails]
            for label, length in zip(of_tails, tail_lengths, strict=True):
                first = int(firsts[label])
                parts.append(targets[chunk][_tail(first, length)])
                places.append(np.arange(first + 1, first + 1 + length))
            if any(tail_lengths):
                counts += [1] * sum(tail_lengths)
            tokens = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else NO_TOKENS
            read = ONE if counts == [1] else np.array(counts, np.int64)
            of_row = places[0] if len(places) == 1 else np.concatenate(places)
            found.append(Row(tokens, begin, buffer, of_row, read, tuple(tail_lengths) if shares[node] else ()))
        return found

    def _targets(self) -> tuple[Indices, list[TokenIds]]:
        """Return where the targets of each label begin among those of its chunk, and these."""
        firsts, targets = list[Indices](), list[TokenIds]()
        for buffer in self._buffers:
            continuations = buffer.chunk.continuations
            assert continuations is not None
            of_labels = continuations.lengths.astype(np.int64)
            firsts.append(np.cumsum(of_labels) - of_labels)
            targets.append(continuations.tokens)
        return np.concatenate(firsts), targets

    def _between(self, item: int, begin: int, stop: int | None) -> TokenIds:
        """Return tokens of query and item. stop: None for the end of the item."""
        end, own = self._ends[item], self._own[item]
        last = end + len(own) if stop is None else stop
        if begin >= end:
            return own[begin - end : last - end]
        return np.concatenate([self._prefix[begin : min(last, end)], own[: max(0, last - end)]])


def _tail(first: int, length: int) -> slice:
    """Return which targets a tail computes: all but the last, since nothing is read behind it."""
    return slice(first, first + length)


def _split(tokens: TokenIds, lengths: TokenIds) -> list[TokenIds]:
    """Return the tokens of each row."""
    stops = np.cumsum(lengths).tolist()
    return [tokens[stop - length : stop] for stop, length in zip(stops, lengths.tolist(), strict=True)]


def _by_number(numbers: Indices, count: int) -> list[Indices]:
    """Return for each number below ``count`` where it stands, in order. Negative numbers are left out."""
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(count + 1)).tolist()
    return [order[first:stop] for first, stop in pairwise(bounds)]
