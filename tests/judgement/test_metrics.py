"""Metrics are those of scikit-learn, also when clusters count several times or not at all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn import metrics as reference

from judgement.metrics import macro_f1, metrics_of, reliability
from judgement.rankings import ranking_metrics
from judgement.sample import Floats, JudgementError, Sample
from judgement.statistics import value_of


def a_sample(labels: int, *, ties: bool, rows: int = 300, seed: int = 0) -> Sample:
    """Return random rows in clusters of one to four."""
    generator = np.random.default_rng(seed)
    shares = generator.dirichlet(np.ones(labels), rows)
    if ties:
        shares = np.round(shares, 1) + 0.01
    truth = (generator.random((rows, 1)) > np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1)).sum(axis=1)
    return Sample.of(shares, np.minimum(truth, labels - 1), generator.integers(0, rows // 3, rows).tolist())


def of_scikit_learn(sample: Sample, weights: Floats) -> dict[str, float]:
    """Return what scikit-learn has. weights: of each row."""
    truth, shares, answers, names = sample.truth, sample.probabilities, sample.answers, range(sample.labels)
    area = shares[:, 0] if sample.labels == 2 else shares
    return {
        "accuracy": reference.accuracy_score(truth, answers, sample_weight=weights),
        "log_loss": reference.log_loss(truth, shares, labels=names, sample_weight=weights),
        "brier": reference.brier_score_loss(truth, shares, labels=names, sample_weight=weights),
        "macro_f1": reference.f1_score(truth, answers, average="macro", sample_weight=weights, zero_division=0),
        "auc": reference.roc_auc_score(
            truth == 0 if sample.labels == 2 else truth, area, multi_class="ovr", sample_weight=weights
        ),
    }


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("labels", [2, 3, 5])
def test_metrics_are_those_of_scikit_learn(labels: int, ties: bool) -> None:
    for seed in range(5):
        sample = a_sample(labels, ties=ties, seed=seed)
        found = {name: value_of(one, sample.cluster_count) for name, one in metrics_of(sample).items()}
        expected = of_scikit_learn(sample, np.ones(sample.rows))
        assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("labels", [2, 4])
def test_a_resample_has_the_metrics_of_its_rows(labels: int) -> None:
    sample = a_sample(labels, ties=True)
    counts = np.random.default_rng(1).integers(0, 4, (6, sample.cluster_count)).astype(np.float64)
    found = {name: one(counts) for name, one in metrics_of(sample).items()}
    for number, of_clusters in enumerate(counts):
        expected = of_scikit_learn(sample, of_clusters[sample.clusters])
        assert {name: found[name][number] for name in expected} == pytest.approx(expected, abs=1e-12)


def test_a_label_that_is_never_right_has_an_f1_of_0() -> None:
    sample = Sample.of([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], [0, 0, 1])
    assert value_of(macro_f1(sample), 3) == pytest.approx(0.4)


def test_the_calibration_error_is_the_distance_of_what_was_predicted_from_what_happened() -> None:
    shares = np.repeat([0.1, 0.6, 0.9], 100)
    truth = np.concatenate([np.arange(100) >= happened for happened in (20, 50, 90)]).astype(int)
    sample = Sample.of(np.stack([shares, 1 - shares], axis=1), truth)
    assert value_of(metrics_of(sample)["ece"], 300) == pytest.approx((0.1 + 0.1 + 0.0) / 3)
    bins = reliability(sample)
    assert bins.observed.tolist() == pytest.approx([0.2, 0.5, 0.9])
    assert bins.rows.tolist() == [100, 100, 100]


def test_the_calibration_error_of_more_labels_is_that_of_the_most_probable_one() -> None:
    sample = Sample.of([[0.6, 0.2, 0.2]] * 10, [0] * 5 + [1] * 5)
    assert value_of(metrics_of(sample)["ece"], 10) == pytest.approx(0.1)


def test_ndcg_is_that_of_scikit_learn() -> None:
    generator = np.random.default_rng(3)
    for _ in range(20):
        scores, grades = generator.integers(0, 4, 12) / 4, generator.integers(0, 4, 12)
        found, _ = ranking_metrics(scores, grades, np.zeros(12, dtype=np.int64), 5)
        assert value_of(found["ndcg@5"], 1) == pytest.approx(reference.ndcg_score([grades], [scores], k=5))


def test_figures_of_a_ranking_are_means_over_the_orders_that_equal_scores_may_have() -> None:
    generator = np.random.default_rng(4)
    for k in (1, 2, 4):
        scores, grades = generator.integers(0, 3, 6) / 3, np.array([1, 0, 1, 0, 0, 1])
        orders = [order for order in map(list, itertools.permutations(range(6))) if np.all(np.diff(scores[order]) <= 0)]
        ranked = [grades[order] for order in orders]
        found, counted = ranking_metrics(scores, grades, np.zeros(6, dtype=np.int64), k)
        assert value_of(found["mrr"], 1) == pytest.approx(np.mean([1 / (np.argmax(one > 0) + 1) for one in ranked]))
        assert value_of(found[f"recall@{k}"], 1) == pytest.approx(np.mean([one[:k].sum() / 3 for one in ranked]))
        assert counted == 1


def test_queries_without_a_relevant_item_do_not_count() -> None:
    found, counted = ranking_metrics([0.9, 0.1, 0.5], [0, 1, 0], np.array([0, 0, 1]), 10)
    assert (counted, value_of(found["mrr"], 2)) == (1, 0.5)
    with pytest.raises(JudgementError, match="no query has a relevant item"):
        ranking_metrics([0.9, 0.1], [0, 0], np.array([0, 0]), 10)


@pytest.mark.parametrize(
    ("shares", "truth", "says"),
    [
        ([[0.5, float("nan")]], [0], "row 0: its probabilities must be numbers"),
        ([[0.5, 0.5], [0.0, 0.0]], [0, 0], "row 1: its probabilities must be numbers"),
        ([[0.5, 0.5], [1.5, -0.5]], [0, 0], "row 1: its probabilities must be numbers"),
        ([[0.5, 0.5]], [2], "a place from 0 to 1"),
        ([[1.0]], [0], "at least two labels"),
    ],
)
def test_what_is_no_sample_is_refused(shares: list[list[float]], truth: list[int], says: str) -> None:
    with pytest.raises(JudgementError, match=says):
        Sample.of(shares, truth)
