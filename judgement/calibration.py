"""Fit what makes probabilities say how often they are right, and choose the method by held-out log loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from judgement.applying import LEAST, calibrated, softmax
from judgement.intervals import Bootstrap, Difference
from judgement.metrics import log_losses
from judgement.sample import Floats, JudgementError, Sample, check_labels
from judgement.statistics import mean_of

FOLDS = 5

LEAST_ROWS = 200
"""Clusters that a calibration needs. With fewer, an observed rate is off by more than 3 points on average, which is as
much as calibration should mend."""

LEAST_ROWS_OF_A_LABEL = 10
"""Rows of each label, so that every fold has some."""

LEAST_ROWS_FOR_BIAS = 1_000
"""Clusters from which on a tie of temperature goes to the method that can also favour a label less. What its further
numbers cost is in its held-out log loss. A bias that temperature can't mend stays, however many rows there are."""

LEAST_ROWS_FOR_ISOTONIC = 1_000
"""Clusters from which on a free curve is tried, too: it follows the noise of fewer. Source: Niculescu-Mizil and
Caruana, Predicting good probabilities with supervised learning (2005)."""

MOST_KNOTS = 64
"""Points of such a curve at most, between which it is straight: it is kept with each job that names the artefact."""

_PRIOR = 10.0
"""The standard deviation of a slope around 1 and of an intercept around 0, in a normal prior. It keeps both finite
where the labels can be told apart without an error, and is too wide to matter elsewhere."""

Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The best method, fitted on all rows."""

    method: str
    parameters: Parameters
    held_out: Mapping[str, float]  # the mean log loss of each method on rows that it was not fitted on
    gain: Difference  # by how much the method lowers that log loss, where 0 is what the probabilities have now
    before: Sample  # the rows as they were
    after: Sample  # the rows, each calibrated by what was fitted without it


def calibrate(sample: Sample) -> Calibration:
    """Return the method with the lowest held-out log loss, which may be to change nothing. Raises JudgementError.

    With many rows, a tie of temperature with the method that has a bias goes to the latter: see LEAST_ROWS_FOR_BIAS.
    """
    check_enough(sample)
    methods = methods_for(sample)
    held_out = {name: _held_out(sample, fit, name) for name, fit in methods.items()}
    losses = {name: log_losses(one) for name, one in held_out.items()}
    means = {name: float(of_rows.mean()) for name, of_rows in losses.items()}
    best = min(means, key=means.__getitem__)
    if best == "temperature" and sample.cluster_count >= LEAST_ROWS_FOR_BIAS:
        with_bias = "platt" if "platt" in losses else "vector"
        if means[with_bias] < means["identity"] and _is_as_good(losses[with_bias], losses[best], sample):
            best = with_bias
    both = {"now": mean_of(losses[best], sample.clusters), "before": mean_of(losses["identity"], sample.clusters)}
    gain = Bootstrap(both, sample.cluster_count).difference("before", "now")
    return Calibration(best, methods[best](sample), means, gain, sample, held_out[best])


def check_enough(sample: Sample, labels: Sequence[str] = ()) -> None:
    """Raise JudgementError if a sample is too small to promise anything, or has one label only.

    labels: what they are called; none: they are numbers.
    """
    check_labels(sample)
    counts = np.bincount(sample.truth, minlength=sample.labels)
    if sample.cluster_count < LEAST_ROWS:
        raise JudgementError(
            f"there are {sample.cluster_count} independent rows, and {LEAST_ROWS} are needed: with fewer, a rate that "
            "is observed is off by more than 3 points on average"
        )
    if counts.min() < LEAST_ROWS_OF_A_LABEL:
        rarest = int(counts.argmin())
        raise JudgementError(
            f"label {labels[rarest] if labels else rarest} is the true one of {counts[rarest]} rows, and "
            f"{LEAST_ROWS_OF_A_LABEL} are needed of each label: label more rows of it, or leave the label out"
        )


def methods_for(sample: Sample) -> dict[str, Callable[[Sample], Parameters]]:
    """Return what is tried on a sample: functions that fit the parameters of a method, by its name."""
    found: dict[str, Callable[[Sample], Parameters]] = {"identity": lambda _: {}, "temperature": fit_temperature}
    if sample.labels > 2:
        return found | {"vector": fit_vector}
    found["platt"] = fit_platt
    if sample.cluster_count >= LEAST_ROWS_FOR_ISOTONIC:
        found["isotonic"] = fit_isotonic
    return found


def fit_temperature(sample: Sample) -> Parameters:
    """Return the number by which logits are divided. The order of the labels stays as it is.

    Source: Guo and others, On calibration of modern neural networks (2017).
    """
    logarithms = _logarithms(sample)

    def loss(log_slope: float) -> float:
        prior = 0.5 * (log_slope / _PRIOR) ** 2 / sample.rows
        return _mean_loss(softmax(logarithms * np.exp(log_slope)), sample) + prior

    found = optimize.minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded")
    return {"temperature": float(np.exp(-found.x))}


def fit_platt(sample: Sample) -> Parameters:
    """Return slope and intercept of the log odds of the first of two labels.

    Source: Platt, Probabilistic outputs for support vector machines (1999).
    """
    logarithms = _logarithms(sample)
    odds = np.stack([logarithms[:, 0] - logarithms[:, 1], np.zeros(sample.rows)], axis=1)
    slopes, intercepts = _fit_linear(odds, sample, free=1)
    return {"slope": float(slopes[0]), "intercept": float(intercepts[0])}


def fit_vector(sample: Sample) -> Parameters:
    """Return a weight and a bias for the logit of each label. Source: Guo and others (2017)."""
    weights, biases = _fit_linear(_logarithms(sample), sample, free=sample.labels)
    return {"weights": weights.tolist(), "biases": biases.tolist()}


def fit_isotonic(sample: Sample) -> Parameters:
    """Return a rising curve from the log odds of the first of two labels to its probability.

    Source: Zadrozny and Elkan, Transforming classifier scores into accurate probability estimates (2002).
    """
    logarithms = _logarithms(sample)
    least = 1 / (sample.rows + 2)  # a rate of 0 in so many rows is no proof that it never happens
    curve = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip")
    curve.fit(logarithms[:, 0] - logarithms[:, 1], (sample.truth == 0).astype(np.float64))
    odds, shares = curve.X_thresholds_, curve.y_thresholds_
    if len(odds) > MOST_KNOTS:
        kept = np.unique(np.linspace(0, len(odds) - 1, MOST_KNOTS).round().astype(np.int64))
        odds, shares = odds[kept], shares[kept]
    return {"log_odds": odds.tolist(), "probabilities": shares.tolist()}


def _fit_linear(logits: Floats, sample: Sample, free: int) -> tuple[Floats, Floats]:
    """Return slopes and intercepts, [free], for the first columns of logits, [N, K], with the least log loss."""
    true = np.eye(logits.shape[1])[sample.truth]
    own = logits[:, :free]

    def loss(parameters: Floats) -> tuple[float, Floats]:
        slopes, intercepts = parameters[:free], parameters[free:]
        scaled = logits.copy()
        scaled[:, :free] = own * slopes + intercepts
        shares = softmax(scaled)
        from_prior = (parameters - start) / _PRIOR
        pull = (shares - true)[:, :free] / sample.rows
        gradient = np.concatenate([(pull * own).sum(axis=0), pull.sum(axis=0)]) + from_prior / _PRIOR / sample.rows
        return _mean_loss(shares, sample) + 0.5 * float(from_prior @ from_prior) / sample.rows, gradient

    start = np.concatenate([np.ones(free), np.zeros(free)])
    found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B")
    return found.x[:free], found.x[free:]


def _held_out(sample: Sample, fit: Callable[[Sample], Parameters], method: str) -> Sample:
    """Return the rows, each calibrated by what was fitted on the folds without it. Clusters are not divided."""
    is_single = sample.cluster_count == sample.rows
    folds = (StratifiedKFold if is_single else StratifiedGroupKFold)(FOLDS, shuffle=True, random_state=0)
    found = np.empty_like(sample.probabilities)
    for fitted, rest in folds.split(sample.probabilities, sample.truth, None if is_single else sample.clusters):
        found[rest] = calibrated(method, fit(sample.of_rows(fitted)), sample.probabilities[rest])
    return sample.with_probabilities(found)


def _is_as_good(losses: Floats, others: Floats, sample: Sample) -> bool:
    """Return whether the mean of losses is above that of others by no more than its standard error."""
    sums = np.bincount(sample.clusters, losses - others)
    return bool(sums.sum() <= sums.std() * np.sqrt(len(sums)))


def _logarithms(sample: Sample) -> Floats:
    logarithms: Floats = np.log(np.maximum(sample.probabilities, LEAST))
    return logarithms


def _mean_loss(shares: Floats, sample: Sample) -> float:
    return float(log_losses(sample.with_probabilities(shares)).mean())
