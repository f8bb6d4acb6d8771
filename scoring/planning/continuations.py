"""Choose how continuations share the work of their item, by lengths alone, as all planning does.

Under batch invariance, the way of a continuation depends on the lengths of its query, of its item and of its own
targets. How many other labels there are, and how long they are, must not matter, since a way decides the last bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from scoring.layout import Continuations, Rows, TokenIds
from scoring.planning.algorithms import Algorithm
from scoring.planning.estimates import NOTHING, Estimate, GroupLengths, Shapes, slot_rows
from scoring.planning.planner import Assignment, Indices, Planner

ASSUMED_LABELS = 3
"""Labels of an item that the cost of a branch is assumed to be divided by, where the true number must not matter."""

MOST_KEYS = 2**62
"""Rows of a table are told apart by 64-bit numbers, which must not overflow."""


class Way(IntEnum):
    """What is computed for a continuation."""

    NOTHING = 0  # it has no targets
    END = 1  # its only target is read at the end of the item, which is computed as for labels of one token
    ROW = 2  # item and targets are a row behind the query, whose tokens of the item are computed once for many labels
    BRANCH = 3  # query and item become a prefix of their own, and the targets are a row behind it


@dataclass(frozen=True, slots=True, eq=False)
class ContinuationLengths:
    """The lengths of C continuations behind the rows of a group, in tokens."""

    rows: Indices  # which row of the group each belongs to, [C], ascending
    kept: TokenIds  # tokens of the row's whole sequence that it keeps, int32 [C]
    targets: TokenIds  # int32 [C]

    @classmethod
    def of(cls, rows: Rows, continuations: Continuations) -> ContinuationLengths:
        """Return the lengths of a chunk's continuations."""
        labels = len(continuations) // max(1, len(rows))
        return cls(np.repeat(np.arange(len(rows)), labels), continuations.kept, continuations.lengths)

    @classmethod
    def join(cls, parts: Sequence[tuple[Rows, Continuations]]) -> ContinuationLengths:
        """Return the lengths of several chunks' continuations, whose rows make one group in this order."""
        of_each = [cls.of(rows, continuations) for rows, continuations in parts]
        firsts = np.cumsum([0, *(len(rows) for rows, _ in parts)])
        return cls(
            np.concatenate([one.rows + first for one, first in zip(of_each, firsts.tolist(), strict=False)]),
            np.concatenate([one.kept for one in of_each]),
            np.concatenate([one.targets for one in of_each]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ContinuationPlan:
    """What is computed for the continuations of a group."""

    assignments: list[Assignment]  # of all rows, and so of their continuations; never a packed algorithm
    ways: npt.NDArray[np.int8]  # of each continuation, a :class:`Way`


def plan_continuations(planner: Planner, group: GroupLengths, continuations: ContinuationLengths) -> ContinuationPlan:
    """Assign the rows of a group, and choose the way of each of their continuations."""
    policy = planner.policy
    if policy.algorithm == "packed":
        rule = replace(planner, policy=replace(policy, algorithm="auto"))
        why = "packed sequences are not read at several tokens"
        assignments = [
            Assignment(one.rows, replace(one.choice, reason=why, fallback=True)) for one in rule.plan_by_rule(group)
        ]
    else:
        assignments = planner.plan_by_rule(group)
    is_serial = np.zeros(len(group), np.bool_)
    for one in assignments:
        is_serial[one.rows] = one.choice.algorithm is Algorithm.SERIAL
    of_rows = continuations.rows
    labels = np.full(len(of_rows), ASSUMED_LABELS) if policy.batch_invariant else np.bincount(of_rows)[of_rows]
    begins = np.where(is_serial[of_rows], 0, np.minimum(group.prefix_ends[of_rows], continuations.kept - 1))
    whole = (group.prefix_ends + group.lengths)[of_rows]
    kinds, kind_of = _kinds(begins, continuations.kept, continuations.targets, whole, labels)
    ways = [_way(planner, *kind) for kind in kinds]
    return ContinuationPlan(assignments, np.array(ways, np.int8)[kind_of])


def _kinds(*columns: npt.NDArray[np.integer[Any]]) -> tuple[list[list[int]], Indices]:
    """Return the distinct rows of a table, in ascending order, and which of them each row is.

    columns: non-negative integers. NumPy sorts rows slowly and copies them, so each row becomes one number.
    """
    keys, most = np.zeros(len(columns[0]), np.int64), 0
    for column in columns:
        values = int(column.max(initial=0)) + 1
        if (most + 1) * values > MOST_KEYS:
            distinct, keys = np.unique(keys, return_inverse=True)
            most = len(distinct)
        keys *= values
        keys += column
        most = most * values + values - 1
    _, firsts, kind_of = np.unique(keys, return_index=True, return_inverse=True)
    return np.stack([column[firsts] for column in columns], axis=1).tolist(), kind_of


def _way(planner: Planner, begin: int, kept: int, targets: int, whole: int, labels: int) -> Way:
    """Return the way of a continuation. begin: tokens of the query that it shares; whole: of query and item."""
    if not targets:
        return Way.NOTHING
    if targets == 1 and kept == whole:
        return Way.END
    if kept - begin <= 1:  # The label alone is behind the query.
        return Way.ROW
    return cheaper_way(planner, begin, kept, targets, labels)


def cheaper_way(planner: Planner, begin: int, kept: int, targets: int, labels: int) -> Way:
    """Return the way that is estimated to take less time for a continuation of an item that has so many like it."""
    estimator, own = planner.estimator, kept - begin
    if shares_row(own, targets, estimator.shapes.step_tokens):
        sizes = [size for _, size in together_in_rows(own, [targets - 1] * labels, estimator.shapes)]
        rows = sum((estimator.row(size, begin) for size in sizes), NOTHING)
    else:
        rows = estimator.row(own + targets - 1, begin).times(labels)
    branch = estimator.beside(own, begin) + estimator.behind(labels * (targets - 1), kept)
    return Way.ROW if rows.seconds <= branch.seconds else Way.BRANCH


def shares_row(own: int, targets: int, step: int) -> bool:
    """Return whether a label's row shares the computed tokens of its item with the rows of other labels.

    own: those tokens. A label that is longer than a step has a row of its own, and so has one that is not read behind
    its item, because its row is computed by other programs.
    """
    return targets > 1 and own + targets - 1 <= step


def together_in_rows(own: int, tails: Sequence[int], shapes: Shapes) -> Iterator[tuple[list[int], int]]:
    """Yield which labels share a row, as many as a step has room for, and the tokens of a step that the row takes.

    own: computed tokens of the item; tails: those of each label behind them. Each label fits alone.
    """
    together, tokens, slots = list[int](), own, slot_rows(own)

    def size() -> int:
        return max(tokens, -(-slots * shapes.step_tokens // shapes.slot_tokens)) if shapes.slot_tokens else tokens

    for number, tail in enumerate(tails):
        slot = slot_rows(own + tail)
        is_full = tokens + tail > shapes.step_tokens or (shapes.slot_tokens and slots + slot > shapes.slot_tokens)
        if together and is_full:
            yield together, size()
            together, tokens, slots = [], own, slot_rows(own)
        together.append(number)
        tokens, slots = tokens + tail, slots + slot
    if together:
        yield together, size()


def cached_by_plan(
    planner: Planner, group: GroupLengths, continuations: ContinuationLengths, plan: ContinuationPlan
) -> int:
    """Return the tokens of the query that items share, where none is cached. The first item pays for the query.

    An item counts once, however many labels it has.
    """
    step, total = planner.estimator.shapes.step_tokens, 0
    of_rows = continuations.rows
    ends, kept = group.prefix_ends[of_rows], continuations.kept
    lengths = np.where(
        plan.ways == Way.END, group.lengths[of_rows], kept - np.minimum(ends, kept - 1) + continuations.targets - 1
    )
    # Where the query ends, the first target is read from its final state, and no token is computed for it.
    lengths = np.where((group.lengths[of_rows] == 0) & (kept == group.prefix), 0, lengths)
    # What is read at the end of a long item is read at the end of its branch, if there is one.
    ends_branch = (plan.ways == Way.BRANCH) & (kept == (group.prefix_ends + group.lengths)[of_rows])
    in_branch = np.isin(of_rows, of_rows[ends_branch]) & (lengths > step)
    is_row = ((plan.ways == Way.END) & ~in_branch) | (plan.ways == Way.ROW)
    for one in plan.assignments:
        if one.choice.algorithm is Algorithm.SERIAL:
            continue
        mine = np.isin(of_rows, one.rows) & (plan.ways != Way.NOTHING)
        short = np.isin(one.rows, of_rows[mine & is_row & (lengths <= step)])
        shared = shared_tokens(group.prefix_ends[one.rows], short, step)
        has_rows = np.isin(one.rows, of_rows[mine & is_row])
        in_order = np.concatenate([shared[has_rows], shared[~has_rows & np.isin(one.rows, of_rows[mine])]])
        total += int(in_order[1:].sum())
    return total


def shared_tokens(prefix_ends: TokenIds | int, is_short: npt.NDArray[np.bool_] | bool, step: int) -> TokenIds:
    """Return how many tokens of the query items share: whole steps, unless some row of the item fits into a step."""
    ends = np.asarray(prefix_ends, np.int64)
    return np.where(is_short, ends, ends // step * step).astype(np.int32)


def estimate_continuations(
    planner: Planner, group: GroupLengths, continuations: ContinuationLengths, plan: ContinuationPlan
) -> Estimate:
    """Estimate a plan by the stored rates."""
    total, estimator, states = NOTHING, planner.estimator, 0
    of_rows, kept, targets = continuations.rows, continuations.kept.astype(np.int64), continuations.targets
    for one in plan.assignments:
        is_serial = one.choice.algorithm is Algorithm.SERIAL
        prefix = 0 if is_serial else group.prefix
        if not is_serial and not group.cached:
            total += estimator.long(group.prefix)
        mine = np.isin(of_rows, one.rows)
        ends = np.unique(of_rows[mine & (plan.ways == Way.END)])
        lengths = group.lengths[ends] + (group.prefix_ends[ends] if is_serial else 0)
        total += estimator.items(lengths, prefix)
        begins = np.minimum(group.prefix_ends[of_rows], kept - 1) * (not is_serial)
        lengths = kept - begins + targets - 1
        in_rows = mine & (plan.ways == Way.ROW)
        sharing = in_rows & (targets > 1) & (lengths <= estimator.shapes.step_tokens)  # see :func:`shares_row`
        shared = list(_shared_rows(of_rows[sharing], (kept - begins)[sharing], targets[sharing], estimator.shapes))
        rows = in_rows & ~sharing
        total += estimator.items(np.array([*lengths[rows], *shared], np.int32), prefix)
        branching = mine & (plan.ways == Way.BRANCH)
        branches, branch_of = _kinds(of_rows[branching], kept[branching], begins[branching])
        behind = np.bincount(branch_of, (targets - 1)[branching], minlength=len(branches))
        for (_, kept_tokens, begin), tokens in zip(branches, behind.tolist(), strict=True):
            total += estimator.beside(kept_tokens - begin, begin) + estimator.behind(int(tokens), kept_tokens)
        states += len(ends) + int(targets[rows].sum()) + len(branches) + int(behind.sum())
        states += len(shared) + int((targets - 1)[sharing].sum())
    return total + estimator.heads(states)


def _shared_rows(of_rows: Indices, own: Indices, targets: Indices, shapes: Shapes) -> Iterator[int]:
    """Yield the tokens of a step that each row takes which labels share: those of one item that keep as much of it."""
    order = np.lexsort((own, of_rows))
    keys = np.stack([of_rows, own])[:, order]
    firsts = np.flatnonzero((np.diff(keys, axis=1, prepend=-1) != 0).any(axis=0))
    for together in np.split(order, firsts[1:]) if len(order) else ():
        tails = (targets[together] - 1).tolist()
        yield from (size for _, size in together_in_rows(int(own[together[0]]), tails, shapes))
