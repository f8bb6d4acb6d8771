"""Cut the sequences of a group: what is kept in blocks, what is computed again, and what shares a row.

This is the only place that decides. The engine lays out what a cut says; the price, the estimated seconds, the tokens
that are computed and those that are shared are folds over it (:mod:`scoring.planning.folds`). It is made of lengths
alone, with arrays over all labels.

Under batch invariance, what is done for a label depends on the lengths of its query, of its item and of its own
targets. How many other labels there are, and how long they are, must not matter, since it decides the last bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from scoring.planning.algorithms import Algorithm, Choice
from scoring.planning.estimates import Estimates, Shapes, slots_of
from scoring.planning.lengths import GroupLengths, Indices, distinct
from scoring.planning.planner import Planner

ASSUMED_LABELS = 3
"""Labels of an item that the cost of a branch is assumed to be divided by, where the true number must not matter."""

Mask = npt.NDArray[np.bool_]
NONE: Indices = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """Query and item that become a prefix of their own, which labels continue. [B] each."""

    items: Indices
    begins: Indices  # tokens of the query that it begins with, and whose whole steps it shares; 0: none
    ends: Indices  # tokens of query and item

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True, eq=False)
class CutRows:
    """Tokens that are computed at once, behind a prefix or behind nothing. [R] each.

    A row has tokens of query and item, and behind these its tails: of each label that it computes, all targets but the
    last. It is read at its last token of query and item, if it has one, and at each token of its tails.
    """

    items: Indices
    branches: Indices  # the branch that it is behind; -1: behind the query, or behind nothing if it begins at 0
    begins: Indices  # which of the tokens of query and item it has
    ends: Indices
    tails: Indices  # tokens of all of its tails
    takes: Indices  # the tokens of a step that it takes, slots included, where it fits into a step
    shares: Mask  # whether its tails do not see one another; otherwise it has one tail at most, and is one sequence

    def __len__(self) -> int:
        return len(self.items)

    @property
    def tokens(self) -> Indices:
        """How many tokens each computes. A row without any is read at the last token of the query that it sees."""
        found: Indices = self.ends - self.begins + self.tails
        return found

    @property
    def reads(self) -> Indices:
        """At how many tokens each is read."""
        has_end = (self.ends > self.begins) | (self.tails == 0)
        found: Indices = self.tails + has_end
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """How a group is computed. Labels of one token each are those of their item, as one label."""

    group: GroupLengths
    choices: tuple[Choice, ...]
    choice_of: Indices  # of each item, [N]
    rows: CutRows
    branches: Branches
    first_reads: Indices
    """Where the first target of each label is read, [L]: at the end of this row, or of the branch whose number follows
    those of the rows. -1: it has no targets."""
    tail_rows: Indices  # which row computes its other targets, [L]; -1: none

    def items_of(self, choice: int) -> Indices:
        """Return the items of a choice."""
        return np.flatnonzero(self.choice_of == choice)

    @property
    def extends(self) -> Mask:
        """Which items share the query in the pool, [N]."""
        of_choices = np.array([one.algorithm is Algorithm.PREFILL_EXTEND for one in self.choices], np.bool_)
        found: Mask = of_choices[self.choice_of]
        return found


def cut(planner: Planner, group: GroupLengths) -> Cut:
    """Cut a group in the way that a planner's policy asks for."""
    choices, choice_of = _choices(planner, group)
    is_serial = np.array([one.algorithm is Algorithm.SERIAL for one in choices], np.bool_)[choice_of]
    ends = group.prefix_ends.astype(np.int64)
    starts, whole = np.where(is_serial, 0, ends), ends + group.lengths
    if group.labels is None:
        items, none = np.arange(len(group)), np.full(len(group), -1)
        lengths = whole - starts
        rows = CutRows(items, none, starts, whole, np.zeros_like(items), lengths, np.zeros(len(items), np.bool_))
        return Cut(group, choices, choice_of, rows, Branches(NONE, NONE, NONE), items, none)
    return _Labels.of(planner, group, starts, whole, is_serial).cut(group, choices, choice_of)


def _choices(planner: Planner, group: GroupLengths) -> tuple[tuple[Choice, ...], Indices]:
    """Return the algorithms of a group, and which of them each item has."""
    if group.labels is None:
        assigned = planner.plan(group) if len(group) else []
    elif planner.policy.algorithm == "packed":
        by_rule = replace(planner, policy=replace(planner.policy, algorithm="auto")).plan_by_rule(group)
        why = "packed sequences are not read at several tokens"
        assigned = [replace(one, choice=replace(one.choice, reason=why, fallback=True)) for one in by_rule]
    else:
        assigned = planner.plan_by_rule(group)
    choice_of = np.zeros(len(group), np.int64)
    for number, one in enumerate(assigned):
        choice_of[one.rows] = number
    return tuple(one.choice for one in assigned), choice_of


def _rows(
    items: Indices,
    begins: Indices,
    ends: Indices,
    tails: Indices | int = 0,
    branches: Indices | int = -1,
    takes: Indices | None = None,
) -> CutRows:
    """Return rows. takes: of rows whose tails do not see one another; None: each is one sequence."""
    count = len(items)
    behind = np.full(count, branches) if isinstance(branches, int) else branches
    own = np.full(count, tails) if isinstance(tails, int) else tails
    size = ends - begins + own if takes is None else takes
    return CutRows(items, behind, begins, ends, own, size, np.full(count, takes is not None))


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """The L labels of a group while they are cut. All arrays are [L] unless they say otherwise."""

    planner: Planner
    starts: Indices  # [N]: where the row of an item begins that is read at the item's end
    whole: Indices  # [N]: tokens of query and item
    items: Indices
    kept: Indices
    targets: Indices
    begins: Indices  # where the computed tokens of query and item begin
    at_end: Mask  # the first target is read at the end of the item's own row
    branching: Mask
    sharing: Mask  # its row shares the tokens of the item with the rows of other labels
    alone: Mask  # it has a row of its own

    @classmethod
    def of(cls, planner: Planner, group: GroupLengths, starts: Indices, whole: Indices, is_serial: Mask) -> _Labels:
        assert group.labels is not None
        items, step = group.labels.items, planner.estimator.shapes.step_tokens
        kept, targets = group.labels.kept.astype(np.int64), group.labels.targets.astype(np.int64)
        begins = np.minimum(starts[items], kept - 1)
        ends_with_item = kept == whole[items]
        # The final state of the prefix is kept with it. So its last token is not computed again.
        at_prefix = ends_with_item & (group.lengths[items] == 0) & (kept == group.prefix) & ~is_serial[items]
        at_end = (ends_with_item & (targets == 1)) | (at_prefix & (targets > 0))
        own, rest = kept - begins, (targets > 0) & ~at_end
        if planner.policy.batch_invariant:
            labels = np.full(len(items), ASSUMED_LABELS)
        else:
            labels = np.bincount(items, minlength=len(group))[items]
        branching = rest & (own > 1)
        some = np.flatnonzero(branching)
        branching[some] = _are_branches(planner, begins[some], kept[some], targets[some], labels[some])
        sharing = rest & ~branching & _shares_rows(own, targets - 1, step)
        alone = rest & ~branching & ~sharing
        return cls(planner, starts, whole, items, kept, targets, begins, at_end, branching, sharing, alone)

    def cut(self, group: GroupLengths, choices: tuple[Choice, ...], choice_of: Indices) -> Cut:
        """Put rows and branches together."""
        shapes = self.planner.estimator.shapes
        tails = self.targets - 1
        branches, branch_of = self._branches()
        # What is read at the end of a long item is read at the end of its branch, if there is one.
        is_whole = (branches.ends == self.whole[branches.items]) & (
            branches.ends - self.starts[branches.items] > shapes.step_tokens
        )
        branch_of_item = np.full(len(group), -1)
        branch_of_item[branches.items[is_whole]] = np.flatnonzero(is_whole)
        in_branch = self.at_end & (branch_of_item[self.items] >= 0)
        ending, row_of_item = np.unique(self.items[self.at_end & ~in_branch], return_inverse=True)
        behind_prefix = np.flatnonzero(self.at_end & (tails > 0))
        alone = np.flatnonzero(self.alone)
        sharing, row_of_label, together = self._together(shapes)
        behind = np.flatnonzero(self.branching & (tails > 0))
        parts = (
            _rows(ending, self.starts[ending], self.whole[ending]),
            _rows(self.items[behind_prefix], self.kept[behind_prefix], self.kept[behind_prefix], tails[behind_prefix]),
            _rows(self.items[alone], self.begins[alone], self.kept[alone], tails[alone]),
            together,
            _rows(self.items[behind], self.kept[behind], self.kept[behind], tails[behind], branch_of[behind]),
        )
        firsts = np.cumsum([0, *map(len, parts)])
        first_reads, tail_rows = np.full(len(self.items), -1), np.full(len(self.items), -1)
        first_reads[self.at_end & ~in_branch] = row_of_item
        tail_rows[behind_prefix] = firsts[1] + np.arange(len(behind_prefix))
        first_reads[alone] = firsts[2] + np.arange(len(alone))
        tail_rows[alone] = np.where(tails[alone] > 0, first_reads[alone], -1)
        first_reads[sharing] = tail_rows[sharing] = firsts[3] + row_of_label
        tail_rows[behind] = firsts[4] + np.arange(len(behind))
        first_reads[self.branching] = firsts[5] + branch_of[self.branching]
        first_reads[in_branch] = firsts[5] + branch_of_item[self.items[in_branch]]
        rows = CutRows(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("items", "branches", "begins", "ends", "tails", "takes", "shares")
            )
        )
        return Cut(group, choices, choice_of, rows, branches, first_reads, tail_rows)

    def _branches(self) -> tuple[Branches, Indices]:
        """Return the branches, and which of them each label has. Labels that keep as much of an item share one."""
        some = np.flatnonzero(self.branching)
        kinds, kind_of = distinct(self.items[some], self.kept[some], self.begins[some])
        branch_of = np.full(len(self.items), -1)
        branch_of[some] = kind_of
        return Branches(kinds[0], kinds[2], kinds[1]), branch_of

    def _together(self, shapes: Shapes) -> tuple[Indices, Indices, CutRows]:
        """Return the labels that share rows, the row of each, and these rows, numbered from 0.

        Labels that keep as much of an item share its tokens, as many of them as fit into a step.
        """
        some = np.flatnonzero(self.sharing)
        some = some[np.lexsort((self.kept[some], self.items[some]))]
        items, kept, begins, tails = (part[some] for part in (self.items, self.kept, self.begins, self.targets - 1))
        firsts = np.flatnonzero((np.diff(items, prepend=-1) != 0) | (np.diff(kept, prepend=-1) != 0))
        known: dict[tuple[int, bytes], tuple[Indices, list[int]]] = {}
        row_of, sizes, first_labels, rows = list[Indices](), list[int](), list[int](), 0
        bounds = pairwise([*firsts.tolist(), len(some)])
        for (first, stop), own in zip(bounds, (kept - begins)[firsts].tolist(), strict=True):
            key = own, tails[first:stop].tobytes()
            if key not in known:
                found = list(together_in_rows(own, tails[first:stop].tolist(), shapes))
                of_each = np.repeat(np.arange(len(found)), [len(labels) for labels, _ in found])
                known[key] = of_each, [size for _, size in found]
            of_each, of_rows = known[key]
            row_of.append(of_each + rows)
            sizes += of_rows
            first_labels += [first] * len(of_rows)
            rows += len(of_rows)
        row_of_label = np.concatenate(row_of) if row_of else np.zeros(0, np.int64)
        of_first = np.array(first_labels, np.int64)
        tokens = np.bincount(row_of_label, tails, minlength=rows).astype(np.int64)
        made = _rows(items[of_first], begins[of_first], kept[of_first], tokens, takes=np.array(sizes, np.int64))
        return some, row_of_label, made


def _shares_rows(own: Indices, tails: Indices, step: int) -> Mask:
    """Return which labels share the computed tokens of their item in a row, if they are in rows.

    A label that is longer than a step with its item has a row of its own. So has one that is not read behind its item,
    because its row is computed by other programs.
    """
    found: Mask = (tails > 0) & (own + tails <= step)
    return found


def _step_tokens(tokens: Indices, slots: Indices, shapes: Shapes) -> Indices:
    """Return the tokens of a step that rows take, by their tokens and those of their slots."""
    return np.maximum(tokens, -(-slots * shapes.step_tokens // shapes.slot_tokens)) if shapes.slot_tokens else tokens


def _are_branches(planner: Planner, begins: Indices, kept: Indices, targets: Indices, labels: Indices) -> Mask:
    """Return for which labels a branch is estimated to take less time than rows, if its item has so many like it."""
    (begins, kept, targets, labels), kind_of = distinct(begins, kept, targets, labels)
    estimator, own, tails = planner.estimator, kept - begins, targets - 1
    step = estimator.shapes.step_tokens
    rows, shares = np.empty(len(own)), _shares_rows(own, tails, step)
    if shares.any():
        rows[shares] = _in_shared_rows(planner, *(part[shares] for part in (begins, own, tails, labels))).seconds
    if not shares.all():
        one_each = estimator.row((own + tails)[~shares], begins[~shares])
        rows[~shares] = one_each.times(labels[~shares]).seconds
    branch = estimator.as_prefixes(own, begins) + estimator.behind_prefixes(labels * tails, kept)
    found: Mask = (branch.seconds < rows)[kind_of]
    return found


def _in_shared_rows(planner: Planner, begins: Indices, own: Indices, tail: Indices, labels: Indices) -> Estimates:
    """Estimate rows that items share with so many labels of ``tail`` computed tokens each."""
    shapes, estimator = planner.estimator.shapes, planner.estimator
    in_a_row = (shapes.step_tokens - own) // tail
    slot = slots_of(own + tail)
    if shapes.slot_tokens:
        in_a_row = np.minimum(in_a_row, (shapes.slot_tokens - slots_of(own)) // slot)
    in_a_row = np.maximum(in_a_row, 1)

    def row(count: Indices) -> Estimates:
        size = _step_tokens(own + count * tail, slots_of(own) + count * slot, shapes)
        return estimator.row(size, begins)

    rest = labels % in_a_row
    return row(in_a_row).times(labels // in_a_row) + row(rest).times(rest > 0)


def together_in_rows(own: int, tails: list[int], shapes: Shapes) -> Iterator[tuple[list[int], int]]:
    """Yield which labels share a row, as many as a step has room for, and the tokens of a step that the row takes.

    own: computed tokens of the item; tails: those of each label behind them. Each label fits alone.
    """
    first_slot = int(slots_of(np.array(own)))
    together, tokens, slots = list[int](), own, first_slot

    def size() -> int:
        return int(_step_tokens(np.array(tokens), np.array(slots), shapes))

    of_tails: list[int] = slots_of(own + np.array(tails, np.int64)).tolist()
    for number, (tail, slot) in enumerate(zip(tails, of_tails, strict=True)):
        is_full = tokens + tail > shapes.step_tokens or (shapes.slot_tokens and slots + slot > shapes.slot_tokens)
        if together and is_full:
            yield together, size()
            together, tokens, slots = [], own, first_slot
        together.append(number)
        tokens, slots = tokens + tail, slots + slot
    if together:
        yield together, size()
