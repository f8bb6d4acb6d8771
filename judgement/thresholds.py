"""Thresholds whose error rate holds for rows that nobody has labelled, with a stated probability."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log

import numpy as np
import numpy.typing as npt
from scipy import stats

from judgement.sample import Floats, JudgementError, Sample, check_labels

DELTA = 0.05
"""The probability that a labelled file is so misleading that the error rate is higher than promised."""

Counts = npt.NDArray[np.int64]

_STEP = 0.01
_HIGHEST = 35.0
"""The thresholds that are tried lie this far apart in log odds, up to where probabilities are no different from 1."""

_FIRST_SHARE = 0.1
"""The strictest threshold that is tried acts on at least this share of the rows."""


@dataclass(frozen=True, slots=True)
class Certified:
    """The lowest threshold that keeps its promise."""

    threshold: float  # act on a row whose most probable label has at least this probability
    rows: int  # independent rows of the file
    acted: int  # rows of the file that are acted on
    errors: int  # those of them whose answer is wrong
    highest_error: float  # the upper bound of the error rate at this threshold by itself

    @property
    def abstained(self) -> float:
        """The share of rows that are left to others."""
        return 1 - self.acted / self.rows


def rows_needed(max_error: float, delta: float = DELTA) -> int:
    """Return how many rows without an error it takes to promise an error rate."""
    return ceil(log(delta) / log(1 - max_error))


def check_enough(sample: Sample, max_error: float, delta: float = DELTA) -> None:
    """Raise JudgementError if no threshold could be shown to hold, or if all rows have the same true label."""
    check_labels(sample)
    needed = rows_needed(max_error, delta)
    if sample.cluster_count < needed:
        raise JudgementError(
            f"there are {sample.cluster_count} independent rows, and an error of at most {max_error:g} takes {needed} "
            "at least: even without a single error, fewer prove nothing"
        )


def certify(sample: Sample, max_error: float, delta: float = DELTA) -> Certified | None:
    """Return the lowest threshold at which the rate of wrong answers is at most max_error; None if there is none.

    That holds with probability 1 - delta over the choice of the sample, if its rows are drawn independently from those
    that come later. Thresholds are tested from strict to lenient, until one can't be shown to hold: each by an exact
    binomial test of the rows that it acts on. Source: Angelopoulos and others, Learn then test (2021), with fixed
    sequence testing.

    sample: whose rows are independent: each is a cluster. max_error, delta: between 0 and 1. Raises JudgementError.
    """
    if sample.cluster_count < sample.rows:
        raise JudgementError("a threshold needs independent rows: take one row of each cluster")
    check_enough(sample, max_error, delta)
    thresholds, acted, errors = _tests(sample, max_error, delta)
    holds = stats.binom.cdf(errors, acted, max_error) <= delta
    passed = len(holds) if holds.all() else int(np.argmin(holds))
    if not passed:
        return None
    last = passed - 1
    bound = stats.beta.ppf(1 - delta, errors[last] + 1, max(acted[last] - errors[last], 1))
    return Certified(float(thresholds[last]), sample.rows, int(acted[last]), int(errors[last]), float(bound))


@dataclass(frozen=True, slots=True)
class FirstTest:
    """The test of the strictest threshold that is tried."""

    acted: int  # rows of the file that are acted on
    errors: int  # those of them whose answer is wrong
    allowed: int  # so many may be wrong
    provable: float  # the error rate that could be promised of answers from this threshold on


def first_test(sample: Sample, max_error: float, delta: float = DELTA) -> FirstTest:
    """Return the test with which :func:`certify` begins, and which fails if it returns None."""
    _, acted, errors = _tests(sample, max_error, delta)
    rows, wrong = int(acted[0]), int(errors[0])
    holding = stats.binom.cdf(np.arange(rows + 1), rows, max_error) <= delta
    provable = float(stats.beta.ppf(1 - delta, wrong + 1, max(rows - wrong, 1)))
    return FirstTest(rows, wrong, int(holding.sum()) - 1, provable)


def _tests(sample: Sample, max_error: float, delta: float) -> tuple[Floats, Counts, Counts]:
    """Return the thresholds that are tried, from strict to lenient, the rows acted on, and the errors among these."""
    order = np.argsort(-sample.confidence, kind="stable")
    falling = sample.confidence[order]
    errors_before = np.r_[0, np.cumsum(~sample.correct[order])]
    thresholds = _thresholds(sample.labels)
    acted = np.searchsorted(-falling, -thresholds, side="right")
    least = min(sample.rows, max(2 * rows_needed(max_error, delta), ceil(_FIRST_SHARE * sample.rows)))
    first = int(np.argmax(acted >= least))
    return thresholds[first:], acted[first:], errors_before[acted][first:]


def _thresholds(labels: int) -> Floats:
    """Return what is tried, from strict to lenient. The list is the same for all files, as the promise wants it."""
    least = -log(labels - 1)  # the log odds of the least confidence that a row may have
    odds = np.arange(_HIGHEST, least, -_STEP)
    tried: Floats = np.r_[1 / (1 + np.exp(-odds)), 0.0]
    return tried


def set_bound(sample: Sample, max_error: float) -> float:
    """Return the probability from which on labels are in the set of a row, so that few sets lack the true label.

    At most a share of max_error do, on average over samples whose rows are exchangeable with those that come later:
    split conformal prediction. Source: Vovk, Gammerman and Shafer, Algorithmic learning in a random world (2005).
    """
    own = np.sort(sample.probabilities[np.arange(sample.rows), sample.truth])
    rank = floor((sample.rows + 1) * max_error)
    return float(own[rank - 1]) if rank else 0.0  # with so few rows, all labels are in the set
