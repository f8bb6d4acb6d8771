"""What is measured: how often a promise is kept, over many files from one world."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from benchmarks.judgement.made_up import World
from judgement.applying import calibrated, in_set
from judgement.calibration import calibrate, methods_for
from judgement.drift import HOURS, Reference, shifts
from judgement.intervals import Bootstrap
from judgement.metrics import metrics_of
from judgement.sample import Floats
from judgement.statistics import Statistic, value_of
from judgement.thresholds import certify, set_bound

TRUE_ROWS = 2_000_000
"""Rows by which a figure of all rows is known. Tests, which are less strict, take fewer."""

_AT_ONCE = 100_000

OTHER = World(sharpness=1.2, bias=0.0, noise=1.0)
"""What a second system sees of the same rows: it is less sure, and makes other mistakes."""


def paired(world: World, rows: int, generator: np.random.Generator) -> dict[str, Statistic]:
    """Return the metrics of two systems on the same rows, by names such as ``first auc`` and ``second auc``."""
    sample = world.draw(rows, generator)
    seen = np.log(np.maximum(sample.probabilities, 1e-300))
    second = sample.with_probabilities(OTHER.said(seen / world.sharpness, generator))
    both = (("first", sample), ("second", second))
    return {f"{name} {metric}": one for name, of in both for metric, one in metrics_of(of).items()}


def coverage(
    world: World, rows: int, files: int, repetitions: int, *, true_rows: int = TRUE_ROWS, seed: int = 1
) -> dict[str, float]:
    """Return how often the intervals of each metric, and of each paired difference, hold the truth."""
    generator = np.random.default_rng(seed)
    true_parts = [
        {name: value_of(one, _AT_ONCE // world.cluster) for name, one in found.items()}
        for found in (paired(world, _AT_ONCE, generator) for _ in range(true_rows // _AT_ONCE))
    ]
    truth = {name: float(np.mean([part[name] for part in true_parts])) for name in true_parts[0]}
    names = [name.partition(" ")[2] for name in truth if name.startswith("first ")]
    hits: dict[str, int] = dict.fromkeys([*names, *(f"difference of {name}" for name in names)], 0)
    for number in range(files):
        found = paired(world, rows, generator)
        bootstrap = Bootstrap(found, -(-rows // world.cluster), repetitions=repetitions, seed=number)
        for name in names:
            interval = bootstrap.interval(f"first {name}")
            hits[name] += interval.low <= truth[f"first {name}"] <= interval.high
            difference = bootstrap.difference(f"second {name}", f"first {name}").interval
            true = truth[f"second {name}"] - truth[f"first {name}"]
            hits[f"difference of {name}"] += difference.low <= true <= difference.high
    return {name: hit / files for name, hit in hits.items()}


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What a calibration does to fresh rows."""

    method: str
    chosen: bool  # whether it has the lowest held-out log loss
    error_before: float  # the calibration error
    error: float
    accuracy_change: float
    low: float  # the interval of that change
    high: float


def calibrations(world: World, rows: int, fresh_rows: int, seed: int, repetitions: int = 500) -> Iterator[Calibrated]:
    """Yield what each method, fitted on some rows, does to fresh ones."""
    generator = np.random.default_rng(seed)
    sample, fresh = world.draw(rows, generator), world.draw(fresh_rows, generator)
    chosen = calibrate(sample).method
    before = metrics_of(fresh)
    for method, fit in methods_for(sample).items():
        after = metrics_of(fresh.with_probabilities(calibrated(method, fit(sample), fresh.probabilities)))
        both = {"before": before["accuracy"], "after": after["accuracy"]}
        change = Bootstrap(both, fresh.cluster_count, repetitions=repetitions).difference("after", "before").interval
        error_before, error = (value_of(metrics["ece"], fresh.cluster_count) for metrics in (before, after))
        yield Calibrated(method, method == chosen, error_before, error, change.value, change.low, change.high)


@dataclass(frozen=True, slots=True)
class Kept:
    """How thresholds of many files do on all rows of their world."""

    level_held: float  # the share of files whose threshold has at most the promised error; none given counts as held
    given: float  # the share of files for which there is a threshold
    abstained: float  # the mean share of rows that are left to others, of given thresholds
    oracle: float  # the same share of the best threshold for all rows


def thresholds(
    world: World, rows: int, files: int, max_error: float, *, true_rows: int = TRUE_ROWS, seed: int = 2
) -> Kept:
    """Return how well the promise of a threshold is kept."""
    generator = np.random.default_rng(seed)
    all_rows = world.draw(true_rows, generator)
    order = np.argsort(-all_rows.confidence, kind="stable")
    falling = all_rows.confidence[order]
    errors = np.cumsum(~all_rows.correct[order]) / np.arange(1, true_rows + 1)
    whole = np.r_[falling[1:] != falling[:-1], True]  # rows with equal confidence are acted on together
    good = np.flatnonzero((errors <= max_error) & whole)
    oracle = 1 - (good[-1] + 1) / true_rows if len(good) else 1.0
    held, found = 0, []
    for _ in range(files):
        certified = certify(world.draw(rows, generator), max_error)
        if certified is None:
            held += 1
            continue
        acted = int(np.searchsorted(-falling, -certified.threshold, side="right"))
        held += acted == 0 or errors[acted - 1] <= max_error
        found.append(1 - acted / true_rows)
    return Kept(held / files, len(found) / files, float(np.mean(found)) if found else 1.0, oracle)


@dataclass(frozen=True, slots=True)
class Drifts:
    """How often an operator is told that scores have drifted."""

    days: int
    alarms: float  # the share of days with an alarm


def drifts(world: World, now: World, rows: int, rows_a_day: int, files: int, days: int, seed: int = 4) -> Drifts:
    """Return how often there is an alarm while the scores of a service come from ``now``, once a day is full.

    rows: of each file that the scores of the service are compared with, all from ``world``. days: for each file.
    """
    generator = np.random.default_rng(seed)
    hours, alarms = HOURS * (days + 1), 0
    for _ in range(files):
        reference = Reference.of(world.draw(rows, generator).probabilities, None)
        shares = now.draw(rows_a_day * (days + 1), generator).probabilities
        counts = [reference.count(part, None) for part in np.array_split(shares, hours)]
        sums = {name: np.cumsum([one[name] for one in counts], axis=0) for name in counts[0]}
        looks = [
            any(
                one.is_alarm
                for one in shifts(reference, {name: of[hour] - of[hour - HOURS] for name, of in sums.items()})
            )
            for hour in range(HOURS, hours)
        ]
        alarms += int(np.any(np.reshape(looks, (days, HOURS)), axis=1).sum())
    return Drifts(files * days, alarms / (files * days))


def sets(world: World, rows: int, files: int, max_error: float, seed: int = 3) -> dict[str, tuple[float, float, float]]:
    """Return the coverage of sets, their mean size, and the coverage among the hardest tenth of rows, by their kind.

    ``least ambiguous``: those of the product. ``adaptive``: the most probable labels up to a sum (Romano, Sesia and
    Candès, 2020), without randomisation.
    """
    generator = np.random.default_rng(seed)
    fresh = world.draw(200_000, generator)
    hard = fresh.confidence <= np.quantile(fresh.confidence, 0.1)
    figures: dict[str, list[tuple[float, float, float]]] = {"least ambiguous": [], "adaptive": []}
    for _ in range(files):
        sample = world.draw(rows, generator)
        own = np.sort(_sums(sample.probabilities)[np.arange(rows), sample.truth])
        adaptive = _sums(fresh.probabilities) <= own[ceil((rows + 1) * (1 - max_error)) - 1]
        adaptive[np.arange(fresh.rows), fresh.answers] = True
        inside = {"least ambiguous": in_set(fresh.probabilities, set_bound(sample, max_error)), "adaptive": adaptive}
        for name, of in inside.items():
            covered = of[np.arange(fresh.rows), fresh.truth]
            figures[name].append((covered.mean(), of.sum(axis=1).mean(), covered[hard].mean()))
    means = {name: np.mean(found, axis=0).tolist() for name, found in figures.items()}
    return {name: (one[0], one[1], one[2]) for name, one in means.items()}


def _sums(probabilities: Floats) -> Floats:
    """Return the probability of each label and of all more probable ones, [N, K]."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    sums = np.empty_like(probabilities)
    np.put_along_axis(sums, order, np.cumsum(np.take_along_axis(probabilities, order, axis=1), axis=1), axis=1)
    return sums
