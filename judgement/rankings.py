"""How good rankings are: NDCG, mean reciprocal rank and recall, of queries whose items have a known relevance.

Items with equal scores have no order. Each figure is then the mean over all orders that they could have.
"""

from __future__ import annotations

from math import comb

import numpy as np
import numpy.typing as npt

from judgement.sample import Floats, JudgementError, Places
from judgement.statistics import Statistic, mean_of


def ranking_metrics(
    scores: npt.ArrayLike, relevance: npt.ArrayLike, queries: Places, k: int
) -> tuple[dict[str, Statistic], int]:
    """Return the metrics by their names, each a mean over queries, and how many queries count.

    scores, relevance, queries: [N] of each item; relevance is 0 for an item that is not relevant, and may be graded.
    A query without a relevant item says nothing about a ranking, and does not count. Raises JudgementError.
    """
    given, grades = np.asarray(scores, dtype=np.float64), np.asarray(relevance, dtype=np.float64)
    if not np.isfinite(given).all():
        raise JudgementError(f"row {int(np.argmax(~np.isfinite(given)))}: its score is no number")
    if not (np.isfinite(grades) & (grades >= 0)).all():
        raise JudgementError("a relevance must be a number from 0 on")
    order = np.argsort(queries, kind="stable")
    ends = np.cumsum(np.bincount(queries))[:-1]
    each = [_of_query(given[rows], grades[rows], k) for rows in np.split(order, ends)]
    values = np.array(each)
    counted = int((~np.isnan(values[:, 0])).sum())
    if not counted:
        raise JudgementError("no query has a relevant item, so no ranking can be judged")
    own = np.arange(len(values))
    return {name: mean_of(values[:, n], own) for n, name in enumerate((f"ndcg@{k}", "mrr", f"recall@{k}"))}, counted


def _of_query(scores: Floats, grades: Floats, k: int) -> tuple[float, float, float]:
    relevant = int((grades > 0).sum())
    if not relevant:
        return np.nan, np.nan, np.nan
    discounts = np.where(np.arange(len(scores)) < k, 1 / np.log2(np.arange(len(scores)) + 2), 0.0)
    ideal = float(discounts @ np.sort(grades)[::-1])
    gain, found, reciprocal = 0.0, 0.0, None
    place = 0
    for score in np.unique(scores)[::-1]:
        tied = grades[scores == score]
        size, good = len(tied), int((tied > 0).sum())
        gain += float(tied.mean() * discounts[place : place + size].sum())
        found += good * min(max(k - place, 0), size) / size
        if good and reciprocal is None:
            # The first relevant one of them stands at place + n with this probability.
            firsts = range(1, size - good + 2)
            reciprocal = sum(comb(size - n, good - 1) / comb(size, good) / (place + n) for n in firsts)
        place += size
    assert reciprocal is not None
    return gain / ideal, reciprocal, found / relevant
