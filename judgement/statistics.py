"""Figures of clusters of rows that can be computed again, quickly, when clusters count several times or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from judgement.sample import Floats, Places

Statistic = Callable[[Floats], Floats]
"""A figure of a sample: of each resample, [R], by how often each cluster counts in it, [R, C]. NaN: it has none."""


@dataclass(frozen=True, slots=True)
class OfTotals:
    """A figure that is a function of sums over the rows."""

    totals: Floats  # [C, S] the sums of each cluster
    combine: Callable[[Floats], Floats]  # from [R, S], the sums over all rows, to [R]

    def __call__(self, counts: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.combine(counts @ self.totals)


def totals_of(values: npt.ArrayLike, clusters: Places) -> Floats:
    """Return the sums of each cluster, [C, S]. values: [N, S] of each row."""
    columns = np.asarray(values, dtype=np.float64).T
    size = int(clusters.max()) + 1
    return np.stack([np.bincount(clusters, column, size) for column in columns], axis=1)


def mean_of(values: npt.ArrayLike, clusters: Places) -> OfTotals:
    """Return the mean over rows of a value, [N]. Rows without one, which have NaN, do not count."""
    column = np.asarray(values, dtype=np.float64)
    there = ~np.isnan(column)
    both = np.stack([np.where(there, column, 0.0), there], axis=1)
    return OfTotals(totals_of(both, clusters), lambda sums: sums[:, 0] / sums[:, 1])


class AreaUnderCurve:
    """The area under the ROC curve: how often a positive row has a higher score than a negative one; equal: half."""

    def __init__(self, scores: Floats, positive: npt.NDArray[np.bool_], clusters: Places) -> None:
        """scores, positive, clusters: [N]."""
        order = np.argsort(scores, kind="stable")
        ranked = scores[order]
        self._clusters = clusters[order]
        self._positive = positive[order].astype(np.float64)
        self._starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])  # of rows with equal scores
        self._has_ties = len(self._starts) < len(ranked)

    def __call__(self, counts: Floats) -> Floats:
        rows = counts[:, self._clusters]
        positive = rows * self._positive
        negative = rows - positive
        if self._has_ties:
            positive = np.add.reduceat(positive, self._starts, axis=1)
            negative = np.add.reduceat(negative, self._starts, axis=1)
        below = np.cumsum(negative, axis=1)
        pairs = positive.sum(axis=1) * below[:, -1]
        won = np.einsum("rn,rn->r", positive, below) - 0.5 * np.einsum("rn,rn->r", positive, negative)  # equal: half
        with np.errstate(divide="ignore", invalid="ignore"):
            area: Floats = won / pairs
        return area


@dataclass(frozen=True, slots=True)
class MeanOfStatistics:
    """The mean of several figures. One that a resample does not have, such as the AUC of a rare label, is left out."""

    parts: tuple[Statistic, ...]

    def __call__(self, counts: Floats) -> Floats:
        found = np.array([part(counts) for part in self.parts])
        with np.errstate(invalid="ignore"):
            mean: Floats = np.nansum(found, axis=0) / (~np.isnan(found)).sum(axis=0)
        return mean


def value_of(statistic: Statistic, clusters: int) -> float:
    """Return the figure of the sample itself, in which each cluster counts once."""
    return float(statistic(np.ones((1, clusters)))[0])
