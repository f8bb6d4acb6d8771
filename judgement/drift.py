"""Say whether scores are still distributed like those that an artefact was made from.

What is compared are counts: how many rows had which label as the most probable one, how probable that was, and which
share of the vocabulary the labels had. No text is kept, and no score of a single row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri

from judgement.sample import Floats, JudgementError

Counts = npt.NDArray[np.int64]

SCORE, LABEL, MASS = "score", "label", "label_mass"
"""The distributions: of the probability of the most probable label, of which label that is, and of the label mass."""

BINS = 10
"""Bins of a probability at most, each with as many rows of the labelled file as another."""

HOURS = 24
"""So many full hours are looked at together, once an hour."""

FALSE_ALARMS = 0.01
"""The probability that a day without any change has an alarm, on average over labelled files, at most."""

SMALL_SHIFT = 0.1
"""A smaller index is no alarm, however many rows show it. Source: the habit of credit scoring, as in Siddiqi, Credit
risk scorecards (2006)."""

FEWEST_ROWS = 200
"""Nothing is said of fewer rows."""

_EXPECTED = 5.0
"""Rows that a cell should have in the smaller of two samples. Cells with fewer are counted with their neighbours."""


@dataclass(frozen=True, slots=True)
class Reference:
    """How the scores of a labelled file are distributed."""

    edges: Mapping[str, Sequence[float]]  # of the bins of SCORE, and of MASS where it is known, without their ends
    counts: Mapping[str, Sequence[int]]  # of each distribution: the rows in each bin, or with each label

    @classmethod
    def of(cls, probabilities: Floats, label_mass: npt.ArrayLike | None) -> Reference:
        """Return that of N independent rows. probabilities: [N, K]. label_mass: [N]; None: it is not known."""
        mass = None if label_mass is None else np.asarray(label_mass, np.float64)
        values = {SCORE: probabilities.max(axis=1)} | ({} if mass is None else {MASS: mass})
        inner = np.arange(1, BINS) / BINS
        edges = {name: np.unique(np.quantile(one, inner)).tolist() for name, one in values.items()}
        counts = cls(edges, {LABEL: [0] * probabilities.shape[1]}).count(probabilities, mass)
        return cls(edges, {name: of_one.tolist() for name, of_one in counts.items()})

    @classmethod
    def read(cls, figures: Mapping[str, Any]) -> Reference | None:
        """Return what stands in the figures of an artefact; None in one of a version that did not note it."""
        found = figures.get("reference")
        return None if found is None else cls(found["edges"], found["counts"])

    def written(self) -> dict[str, Any]:
        """Return what stands in the figures of an artefact."""
        return asdict(self)

    def count(self, probabilities: Floats, label_mass: Floats | None) -> dict[str, Counts]:
        """Return how many of N rows are in each cell, by distribution. Rows whose probabilities are 0 do not count.

        probabilities: [N, K]. label_mass: [N]; None: it is not known. Raises JudgementError for another K.
        """
        if probabilities.shape[1] != len(self.counts[LABEL]):
            raise JudgementError(f"there are {len(self.counts[LABEL])} labels, and not {probabilities.shape[1]}")
        is_possible = probabilities.any(axis=1)
        shares = probabilities[is_possible]
        found = {LABEL: np.bincount(shares.argmax(axis=1), minlength=shares.shape[1])}
        values = {SCORE: shares.max(axis=1, initial=0.0)}
        if label_mass is not None and MASS in self.edges:
            values[MASS] = label_mass[is_possible]
        for name, of_rows in values.items():
            bins = np.searchsorted(self.edges[name], of_rows, side="right")
            found[name] = np.bincount(bins, minlength=len(self.edges[name]) + 1)
        return found


@dataclass(frozen=True, slots=True)
class Shift:
    """How far a distribution is from that of the labelled file."""

    distribution: str
    rows: int  # that were looked at
    index: float  # the population stability index: 0 if both are the same
    limit: float  # from which on it is an alarm

    @property
    def is_alarm(self) -> bool:
        """Whether the distribution has left that of the labelled file."""
        return self.index > self.limit


def shifts(reference: Reference, counts: Mapping[str, Counts]) -> Iterator[Shift]:
    """Yield what counts say of each distribution that has rows enough. counts: as those of :meth:`Reference.count`."""
    for name, expected in reference.counts.items():
        now = counts.get(name)
        if now is not None and now.sum() >= FEWEST_ROWS:
            yield _shift(name, np.asarray(expected, np.float64), now.astype(np.float64))


def _shift(name: str, expected: Floats, now: Floats) -> Shift:
    """Compare two samples. The index times n m / (n + m) has about a chi-squared distribution if nothing has changed.

    Source: Yurdakul, Statistical properties of population stability index (2018).
    """
    n, m = expected.sum(), now.sum()
    expected, now = _with_enough(expected, now)
    cells = len(expected)
    # Half a row more in each cell, so that an empty one has a logarithm.
    was, is_now = (expected + 0.5) / (n + 0.5 * cells), (now + 0.5) / (m + 0.5 * cells)
    index = float(((is_now - was) * np.log(is_now / was)).sum())
    a_look = FALSE_ALARMS / HOURS / len((SCORE, LABEL, MASS))
    limit = 0.0 if cells == 1 else float(chdtri(cells - 1, a_look) * (1 / n + 1 / m))
    return Shift(name, int(m), index, max(SMALL_SHIFT, limit))


def _with_enough(expected: Floats, now: Floats) -> tuple[Floats, Floats]:
    """Return the counts of two samples with neighbours put together until both can be expected to have some rows."""
    n, m = expected.sum(), now.sum()
    needed = _EXPECTED * (n + m) / min(n, m)
    firsts, held = [0], 0.0
    for cell, rows in enumerate((expected + now).tolist()):
        if held >= needed:
            firsts.append(cell)
            held = 0.0
        held += rows
    if held < needed and len(firsts) > 1:
        firsts.pop()
    return np.add.reduceat(expected, firsts), np.add.reduceat(now, firsts)
