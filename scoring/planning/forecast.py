"""What scoring a job will take, before it is submitted: which algorithms, how much is shared, how long."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scoring.layout import Rows
from scoring.planning.algorithms import Algorithm, Choice
from scoring.planning.estimates import GroupLengths
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


def forecast(prefix: int, parts: Sequence[Rows], paces: Sequence[Pace]) -> Forecast:
    """Forecast the scoring of rows behind a prefix of so many tokens, none of which is in a cache.

    parts: the rows of the job's chunks. paces: the workers, one at least. The algorithms are those of the first.
    """
    rows = Rows.join(parts)
    group = GroupLengths(prefix, rows.lengths, rows.prefix_ends)
    plan = paces[0].planner.plan(group) if len(group) else []
    items_of: Counter[Choice] = Counter()
    cached = 0
    for one in plan:
        items_of[one.choice] += len(one.rows)
        if one.choice.algorithm is Algorithm.PREFILL_EXTEND:
            cached += _shared_tokens(group.only(one.rows), paces[0].planner.estimator.shapes.step_tokens)
    return Forecast(dict(items_of), cached, _seconds(group, paces, len(parts)))


def _shared_tokens(group: GroupLengths, step: int) -> int:
    """Return the tokens that rows behind a prefix share. The first row pays for the prefix.

    A row that is longer than a step shares whole steps alone, as it is computed like a prefix of its own.
    """
    ends: npt.NDArray[np.int64] = group.prefix_ends.astype(np.int64)
    shared = np.where(group.lengths > step, ends // step * step, ends)
    return int(shared[1:].sum())


def _seconds(group: GroupLengths, paces: Sequence[Pace], chunks: int) -> float:
    """Return how long the workers take together. A worker takes some seconds of work at a time, in whole chunks."""
    if not len(group):
        return 0.0
    alone = sorted((_alone(group, pace), pace.claim_seconds) for pace in paces)
    fastest, claim_seconds = alone[0]
    workers = max(1, min(len(alone), chunks, math.ceil(fastest / claim_seconds)))
    return 1 / sum(1 / seconds for seconds, _ in alone[:workers])


def _alone(group: GroupLengths, pace: Pace) -> float:
    """Return how long a worker takes for the whole job; never 0."""
    estimate = pace.planner.estimate(group, pace.planner.plan(group))
    return max(estimate.seconds * pace.ratio, 1e-9)
