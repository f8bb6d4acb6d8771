"""The rows and branches of continuations: what is computed for each, and which of its tokens are read.

A target is read one token before it. So the sequence of a continuation is computed up to its last target but one, and
its last tokens are read, as many as it has targets. :mod:`scoring.planning.continuations` says in which of three ways.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from model.score_buffer import Branch, Places, TargetBuffer, TargetRow, TargetTree
from scoring.layout import TokenIds
from scoring.planning.continuations import Way, shared_tokens, shares_row, together_in_rows
from scoring.planning.estimates import Shapes

NO_TOKENS: TokenIds = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """An item whose continuations are scored."""

    prefix: TokenIds  # of its group
    prefix_end: int  # the part of it that the item sees
    own: TokenIds  # the item's own tokens
    buffer: TargetBuffer
    is_serial: bool  # it is computed without a prefix in the pool


@dataclass(slots=True, eq=False)
class ContinuationRows:
    """Rows and branches under construction.

    shapes: those of steps. Rows that are longer than a step are computed as branches are. They have the same bits at
    their end.
    """

    shapes: Shapes
    rows: list[TargetRow | TargetTree] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)

    def add(self, item: Item, first: int, last: int, ways: list[int], stops: list[int]) -> None:
        """Add what is computed for the continuations of an item: those from ``first`` to before ``last``.

        ways: of all continuations; stops: where the targets of each end among those of the buffer. Both are of the
        buffer's chunk.
        """
        lengths, kept = item.buffer.continuations.lengths, item.buffer.continuations.kept
        at_end, behind, sharing = list[int](), defaultdict[int, list[range]](list), defaultdict[int, list[range]](list)
        adding, length, step = _Adding(item, self.shapes), item.prefix_end + len(item.own), self.shapes.step_tokens
        for number in range(first, last):
            targets = range(stops[number] - int(lengths[number]), stops[number])
            own = int(kept[number]) - adding.computed_from(int(kept[number]))
            match ways[number]:
                case Way.END:
                    at_end.append(targets.start)
                case Way.ROW if not item.is_serial and not len(item.own) and int(kept[number]) == len(item.prefix):
                    # The prefix's final state is kept with it, so its last token is not computed again.
                    at_end.append(targets.start)
                    adding.row(targets[1:], item.prefix_end, NO_TOKENS)
                case Way.ROW if shares_row(own, len(targets), step):
                    sharing[int(kept[number])].append(targets)
                case Way.ROW:
                    begin = min(item.prefix_end, int(kept[number]) - 1)
                    adding.row(targets, begin, _between(item, begin, int(kept[number])))
                case Way.BRANCH:
                    behind[int(kept[number])].append(targets)
        for tokens, labels in sharing.items():
            adding.trees(tokens, labels)
        computed = length if item.is_serial else len(item.own)
        if at_end and length in behind and computed > step:
            adding.branch(length, behind.pop(length), at_end)
        elif at_end:
            adding.rows.append(TargetRow(item.own, item.prefix_end, item.buffer, _places(at_end)[None], None))
        for tokens, labels in behind.items():
            adding.branch(tokens, labels, [])
        adding.count_shared()
        self.rows += adding.rows
        self.branches += adding.branches


@dataclass(slots=True, eq=False)
class _Adding:
    """Makes what is computed for one item."""

    item: Item
    shapes: Shapes
    rows: list[TargetRow | TargetTree] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)

    def computed_from(self, kept: int) -> int:
        """Return where the computed tokens of a row begin that keeps so many tokens of query and item."""
        return 0 if self.item.is_serial else min(self.item.prefix_end, kept - 1)

    def count_shared(self) -> None:
        """Have the first row, or the first branch, count what the item shares: see :func:`shared_tokens`."""
        step_tokens = self.shapes.step_tokens
        is_short = any(len(row.tokens) <= step_tokens for row in self.rows)
        shared = int(shared_tokens(self.item.prefix_end, is_short, step_tokens))
        if self.rows:
            first = self.rows[0]
            if isinstance(first, TargetTree):
                self.rows[0] = replace(first, item=replace(first.item, shared=shared))
            else:
                self.rows[0] = replace(first, shared=shared)
        elif self.branches:
            self.branches[0] = replace(self.branches[0], end=replace(self.branches[0].end, shared=shared))

    def row(self, targets: range, begin: int, kept: TokenIds) -> None:
        """Add a row: what the continuation keeps of the item behind ``begin``, and all targets but the last."""
        if targets:
            ids = self.item.buffer.continuations.tokens[_before_targets(targets, len(kept))]
            tokens = np.concatenate([kept, ids])
            self.rows.append(TargetRow(tokens, begin, self.item.buffer, _places(targets)[:, None], None))

    def trees(self, kept: int, labels: list[range]) -> None:
        """Add rows whose tails are labels that keep ``kept`` tokens of query and item. Each row computes these once."""
        begin = min(self.item.prefix_end, kept - 1)
        own = _between(self.item, begin, kept)
        tails = [len(targets) - 1 for targets in labels]
        for numbers, _ in together_in_rows(kept - self.computed_from(kept), tails, self.shapes):
            together = [labels[number] for number in numbers]
            firsts = _places([targets.start for targets in together])[None]
            item = TargetRow(own, begin, self.item.buffer, firsts, None)
            self.rows.append(TargetTree.of(item, self._behind(kept, together)))

    def branch(self, kept: int, labels: list[range], at_end: list[int]) -> None:
        """Add a branch of the first ``kept`` tokens of the item's sequence. at_end: targets that are read there."""
        at_end = at_end + [targets.start for targets in labels]
        end = TargetRow(NO_TOKENS, kept, self.item.buffer, _places(at_end)[None], None)
        behind = self._behind(kept, labels)
        self.branches.append(Branch(_between(self.item, 0, kept), self.computed_from(kept), end, behind))

    def _behind(self, kept: int, labels: list[range]) -> tuple[TargetRow, ...]:
        """Return the rows of labels behind what they keep: all targets of each but the last, read at every token."""
        buffer = self.item.buffer
        return tuple(
            TargetRow(buffer.continuations.tokens[_before_targets(targets, kept)], kept, buffer, places, None)
            for targets in labels
            if len(places := _places(targets[1:])[:, None])
        )


def _before_targets(targets: range, kept: int) -> slice:
    """Return which targets a row has as its own tokens: all but the last, and where it keeps none, the one before."""
    return slice(targets.start - (not kept), targets.stop - 1)


def _between(item: Item, begin: int, end: int) -> TokenIds:
    """Return tokens of the item's whole sequence, which begins with the prefix."""
    own = item.own[max(0, begin - item.prefix_end) : max(0, end - item.prefix_end)]
    return np.concatenate([item.prefix[begin : min(end, item.prefix_end)], own])


def _places(numbers: range | list[int]) -> Places:
    return np.array(numbers, np.int64)
