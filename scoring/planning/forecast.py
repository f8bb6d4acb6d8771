"""What scoring a job will take, before it is submitted: which algorithms, how much is shared, how long."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scoring.layout import Continuations, Rows
from scoring.planning.algorithms import Choice
from scoring.planning.cut import cut
from scoring.planning.estimates import Estimate
from scoring.planning.folds import cached_tokens, estimate
from scoring.planning.lengths import GroupLengths
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
    group = GroupLengths.of(prefix, list(zip(parts, continuations or [None] * len(parts), strict=True)))
    planner = paces[0].planner
    made = cut(planner, group)
    counts = np.bincount(made.choice_of, minlength=len(made.choices)).tolist()
    items_of = dict(zip(made.choices, counts, strict=True))

    def estimated(planner: Planner) -> Estimate:
        return estimate(planner.estimator, cut(planner, group))

    cached = cached_tokens(made, planner.estimator.shapes.step_tokens)
    return Forecast(items_of, cached, _seconds(estimated, len(group), paces, len(parts)))


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
