"""How good the probabilities of labels are: accuracy, log loss, Brier score, calibration error, AUC and macro F1.

Each is computed here, and not by scikit-learn, because a bootstrap needs it for thousands of resamples at once. The
tests compare all that scikit-learn has with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from judgement.sample import Floats, Places, Sample
from judgement.statistics import AreaUnderCurve, MeanOfStatistics, OfTotals, Statistic, mean_of, totals_of

BINS = 15
ROWS_OF_A_BIN = 10
"""There are at most BINS bins, and fewer if they would have fewer rows than this."""

HIGHER_IS_BETTER = {
    "accuracy": True,
    "log_loss": False,
    "brier": False,
    "ece": False,
    "auc": True,
    "macro_f1": True,
}
"""The names of the metrics, and which direction of each is good."""

WITH_KNOWN_COVERAGE = frozenset({"accuracy", "log_loss", "brier", "auc"})
"""The metrics for which simulations show that nominal intervals of 95 % cover 93 to 97 %, from ROWS_FOR_COVERAGE on."""

ROWS_FOR_COVERAGE = 2_000
"""Independent rows, or clusters, from which on the coverage of intervals is known."""


def metrics_of(sample: Sample) -> dict[str, Statistic]:
    """Return the metrics of a sample by their names. AUC is left out where fewer than two labels are true of rows."""
    clusters = sample.clusters
    found: dict[str, Statistic] = {
        "accuracy": mean_of(sample.correct, clusters),
        "log_loss": mean_of(log_losses(sample), clusters),
        "brier": mean_of(brier_scores(sample), clusters),
        "ece": calibration_error(sample),
        "macro_f1": macro_f1(sample),
    }
    if len(np.unique(sample.truth)) > 1:
        found["auc"] = area_under_curve(sample)
    return {name: found[name] for name in HIGHER_IS_BETTER if name in found}


def log_losses(sample: Sample) -> Floats:
    """Return the log loss of each row, [N], in nats. Probabilities count as at least 2.2e-16, as in scikit-learn."""
    own = sample.probabilities[np.arange(sample.rows), sample.truth]
    losses: Floats = -np.log(np.maximum(own, np.finfo(np.float64).eps))
    return losses


def brier_scores(sample: Sample) -> Floats:
    """Return the squared error of each row, [N]: of the first label if there are two, and else summed over labels."""
    errors = (sample.probabilities - np.eye(sample.labels)[sample.truth]) ** 2
    scores: Floats = errors[:, 0] if sample.labels == 2 else errors.sum(axis=1)
    return scores


def area_under_curve(sample: Sample) -> Statistic:
    """Return the AUC: of the first label if there are two, and else the mean of each label against all others."""
    present = [0] if sample.labels == 2 else np.unique(sample.truth).tolist()
    areas = [AreaUnderCurve(sample.probabilities[:, k], sample.truth == k, sample.clusters) for k in present]
    return areas[0] if len(areas) == 1 else MeanOfStatistics(tuple(areas))


def macro_f1(sample: Sample) -> Statistic:
    """Return the mean of F1 over the labels that are true of a row, or answered. F1 of a label never right is 0."""
    present = np.unique([sample.truth, sample.answers])
    answered = sample.answers[:, None] == present
    true = sample.truth[:, None] == present
    parts = np.concatenate([answered & true, answered, true], axis=1)

    def combine(sums: Floats) -> Floats:
        right, answers, truths = np.split(sums, 3, axis=1)
        mean: Floats = (2 * right / np.maximum(answers + truths, 1.0)).mean(axis=1)  # counts are whole numbers
        return mean

    return OfTotals(totals_of(parts, sample.clusters), combine)


@dataclass(frozen=True, slots=True)
class Reliability:
    """Rows in bins of their confidence: what a reliability diagram shows."""

    confidence: Floats  # [B] the mean of each bin
    observed: Floats  # [B] how often what was predicted is true
    rows: Places  # [B]


def calibration_error(sample: Sample) -> Statistic:
    """Return the expected calibration error over bins with equally many rows.

    It is the mean distance between what was predicted and what happened: for two labels, of the first label's
    probability; for more, of the most probable label's. Source: Nguyen and O'Connor, 2015 (adaptive bins).
    """
    predicted, happened = _predictions(sample)
    bins, count = _bins(predicted)
    values = np.zeros((sample.rows, count + 1))
    values[np.arange(sample.rows), bins] = predicted - happened
    values[:, count] = 1.0
    return OfTotals(totals_of(values, sample.clusters), lambda sums: np.abs(sums[:, :-1]).sum(axis=1) / sums[:, -1])


def reliability(sample: Sample) -> Reliability:
    """Return the bins of which ``calibration_error`` is the mean."""
    predicted, happened = _predictions(sample)
    bins, count = _bins(predicted)
    rows = np.bincount(bins, minlength=count)
    return Reliability(
        np.bincount(bins, predicted, count) / rows, np.bincount(bins, happened, count) / rows, rows.astype(np.int64)
    )


def _predictions(sample: Sample) -> tuple[Floats, Floats]:
    if sample.labels == 2:
        return sample.probabilities[:, 0], (sample.truth == 0).astype(np.float64)
    return sample.confidence, sample.correct.astype(np.float64)


def _bins(predicted: Floats) -> tuple[Places, int]:
    """Return the bin of each row, [N], and how many there are. Rows with equal predictions are in the same bin."""
    wanted = max(1, min(BINS, len(predicted) // ROWS_OF_A_BIN))
    edges = np.quantile(predicted, np.arange(1, wanted) / wanted)
    _, bins = np.unique(np.searchsorted(edges, predicted, side="right"), return_inverse=True)
    return bins.astype(np.int64), int(bins.max()) + 1
