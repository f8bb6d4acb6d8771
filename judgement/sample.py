"""Labelled rows with the probabilities that a system gives their labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


class JudgementError(ValueError):
    """What was given can't be judged. The message is one line."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows whose true labels are known."""

    probabilities: Floats  # [N, K] of each label, with a sum of 1 in each row
    truth: Places  # [N] the place of the true label, from 0 to K - 1
    clusters: Places  # [N] the number of the cluster, from 0 on; rows of different clusters are independent

    @classmethod
    def of(
        cls,
        probabilities: npt.ArrayLike,
        truth: npt.ArrayLike,
        groups: Sequence[object] | None = None,
        where: Callable[[int], str] = "row {}".format,
    ) -> Sample:
        """Return the sample of some rows, whose probabilities are divided by their sum.

        probabilities: [N, K]. truth: [N]. groups: [N] what rows of a cluster have in common, or None for a row that is
        a cluster by itself; None: all rows are. where: how a message names a row. Raises JudgementError.
        """
        given = np.asarray(probabilities, dtype=np.float64)
        places = np.asarray(truth, dtype=np.int64)
        if given.ndim != 2 or given.shape[1] < 2 or places.shape != given.shape[:1]:
            raise JudgementError("each row needs a probability for each of at least two labels, and a true label")
        if not len(given):
            raise JudgementError("there is no row to judge")
        sums = given.sum(axis=1)
        wrong = ~np.isfinite(given).all(axis=1) | (given < 0).any(axis=1) | ~(sums > 0) | ~np.isfinite(sums)
        if wrong.any():
            raise JudgementError(
                f"{where(int(np.argmax(wrong)))}: its probabilities must be numbers from 0 on, and one of them above 0"
            )
        if ((places < 0) | (places >= given.shape[1])).any():
            raise JudgementError(f"a true label must be a place from 0 to {given.shape[1] - 1}")
        return cls(given / sums[:, None], places, clusters_of(groups, len(given)))

    @property
    def rows(self) -> int:
        """The number of rows, N."""
        return len(self.truth)

    @property
    def labels(self) -> int:
        """The number of labels, K."""
        return int(self.probabilities.shape[1])

    @property
    def cluster_count(self) -> int:
        """The number of clusters, C."""
        return int(self.clusters.max()) + 1

    @property
    def answers(self) -> Places:
        """[N] the place of the most probable label; of equal ones, the first."""
        places: Places = self.probabilities.argmax(axis=1)
        return places

    @property
    def confidence(self) -> Floats:
        """[N] the probability of the most probable label."""
        highest: Floats = self.probabilities.max(axis=1)
        return highest

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """[N] whether the most probable label is the true one."""
        is_correct: npt.NDArray[np.bool_] = self.answers == self.truth
        return is_correct

    def with_probabilities(self, probabilities: Floats) -> Sample:
        """Return the same rows with other probabilities, [N, K]."""
        return Sample(probabilities, self.truth, self.clusters)

    def of_rows(self, rows: Places) -> Sample:
        """Return some of the rows, by their places."""
        _, clusters = np.unique(self.clusters[rows], return_inverse=True)
        return Sample(self.probabilities[rows], self.truth[rows], clusters.astype(np.int64))

    def independent_rows(self) -> Places:
        """Return the places of one row of each cluster, [C], drawn at random with a fixed seed."""
        order = np.random.default_rng(0).permutation(self.rows)
        _, first = np.unique(self.clusters[order], return_index=True)
        return np.sort(order[first])


def check_labels(sample: Sample) -> None:
    """Raise JudgementError if one label is the true one of all rows."""
    if (sample.truth == sample.truth[0]).all():
        raise JudgementError("all rows have the same true label, so there is nothing to tell apart")


def clusters_of(groups: Sequence[object] | None, rows: int) -> Places:
    """Return the numbers of the clusters of rows, from 0 on, in the order in which they first occur.

    groups: [rows] what the rows of a cluster have in common; None stands for a row of its own.
    """
    if groups is None:
        return np.arange(rows, dtype=np.int64)
    numbers: dict[object, int] = {}
    keys = ((place,) if group is None else group for place, group in enumerate(groups))
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
