"""What scoring a job will take, before it is submitted: which algorithms, how much is shared, how long."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scoring.layout import Continuations, Rows
from scoring.planning.algorithms import Algorithm, Choice
from scoring.planning.continuations import (
    ContinuationLengths,
    cached_by_plan,
    estimate_continuations,
    plan_continuations,
)
from scoring.planning.estimates import Estimate, GroupLengths
from scoring.planning.planner import Planner


@dataclass(frozen=True, slots=True)
class Pace:
    """A worker that could score a job."""

    planner: Planner
    ratio: float  # what estimates by the stored rates have to be multiplied with
    claim_seconds: float  # of work that the worker takes at a time


@dataclass(frozen=True, slots=True)
class Forecast:
    """How a job would be scored."""

    items_of: dict[Choice, int]  # how many items each choice of an algorithm is for
    cached_tokens: int  # of its sequences that would not have to be computed
    seconds: float  # of the scoring itself, by all workers together


def forecast(
    prefix: int, parts: Sequence[Rows], paces: Sequence[Pace], continuations: Sequence[Continuations | None] = ()
) -> Forecast:
    """Forecast the scoring of rows behind a prefix of so many tokens, none of which is in a cache.

    parts: the rows of the job's chunks. paces: the workers, one at least. The algorithms are those of the first.
    continuations: those of each chunk, all or none.
    """
    rows = Rows.join(parts)
    group = GroupLengths(prefix, rows.lengths, rows.prefix_ends)
    given = [one for one in continuations if one is not None]
    if given:
        lengths = ContinuationLengths.join(list(zip(parts, given, strict=True)))
        return _of_continuations(group, lengths, paces, len(parts))
    plan = paces[0].planner.plan(group) if len(group) else []
    items_of: Counter[Choice] = Counter()
    cached = 0
    for one in plan:
        items_of[one.choice] += len(one.rows)
        if one.choice.algorithm is Algorithm.PREFILL_EXTEND:
            cached += _shared_tokens(group.only(one.rows), paces[0].planner.estimator.shapes.step_tokens)

    def estimated(planner: Planner) -> Estimate:
        return planner.estimate(group, planner.plan(group))

    return Forecast(dict(items_of), cached, _seconds(estimated, len(group), paces, len(parts)))


def _of_continuations(
    group: GroupLengths, continuations: ContinuationLengths, paces: Sequence[Pace], chunks: int
) -> Forecast:
    plan = plan_continuations(paces[0].planner, group, continuations)
    items_of: Counter[Choice] = Counter()
    for one in plan.assignments:
        items_of[one.choice] += len(one.rows)

    def estimated(planner: Planner) -> Estimate:
        own_plan = plan_continuations(planner, group, continuations)
        return estimate_continuations(planner, group, continuations, own_plan)

    cached = cached_by_plan(paces[0].planner, group, continuations, plan)
    return Forecast(dict(items_of), cached, _seconds(estimated, len(group), paces, chunks))


def _shared_tokens(group: GroupLengths, step: int) -> int:
    """Return the tokens that rows behind a prefix share. The first row pays for the prefix.

    A row that is longer than a step shares whole steps alone, as it is computed like a prefix of its own.
    """
    ends: npt.NDArray[np.int64] = group.prefix_ends.astype(np.int64)
    shared = np.where(group.lengths > step, ends // step * step, ends)
    return int(shared[1:].sum())


def _seconds(estimated: Callable[[Planner], Estimate], items: int, paces: Sequence[Pace], chunks: int) -> float:
    """Return how long the workers take together. A worker takes some seconds of work at a time, in whole chunks.

    estimated: the whole job, by the stored rates of a worker's planner.
    """
    if not items:
        return 0.0
    alone = sorted((max(estimated(pace.planner).seconds * pace.ratio, 1e-9), pace.claim_seconds) for pace in paces)
    fastest, claim_seconds = alone[0]
    workers = max(1, min(len(alone), chunks, math.ceil(fastest / claim_seconds)))
    return 1 / sum(1 / seconds for seconds, _ in alone[:workers])
