"""Folds over a cut: what it computes, shares, takes and costs."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from scoring.planning.algorithms import Algorithm
from scoring.planning.cut import Cut
from scoring.planning.estimates import NOTHING, Estimate, Estimator
from scoring.planning.lengths import Indices

Floats = npt.NDArray[np.float64]
Number = TypeVar("Number", float, npt.NDArray[np.float64])

ATTENTION_TOKENS = 3_840
"""Number of preceding tokens whose attention costs as much as all else that is computed for one token.

A token takes 2 operations per weight of the layers, and each pair of tokens takes 4 x query heads x head_dim x layers.
For Qwen3-0.6B the ratio is 2 x 440e6 / (4 x 2,048 x 28); it is similar for the other models.
"""


def work(before: Number, tokens: Number) -> Number:
    """Return the work of computing tokens behind so many others, as a number of tokens that have none before them."""
    found: Number = tokens * (1 + before / ATTENTION_TOKENS)
    return found


def price(cut: Cut) -> Floats:
    """Return the work of each item, float64 [N], without a prefix that it shares. At least one token counts.

    An item that is read at the end of the query is scored, too.
    """
    rows, branches, items = cut.rows, cut.branches, len(cut.group)
    of_rows = work(rows.begins.astype(np.float64), (rows.tokens + _computed_again(cut)).astype(np.float64))
    # Of no rows at all, NumPy counts in whole numbers, whatever the weights.
    of_items = np.bincount(rows.items, of_rows, items).astype(np.float64)
    if len(branches):
        lengths = (branches.ends - branches.begins).astype(np.float64)
        of_items += np.bincount(branches.items, work(branches.begins.astype(np.float64), lengths), items)
    found: Floats = np.maximum(of_items, 1.0)
    return found


def _computed_again(cut: Cut) -> npt.NDArray[np.bool_]:
    """Return for which rows the token before them is computed again, because they have no tokens, and are read there.

    That of the whole query is there already.
    """
    found: npt.NDArray[np.bool_] = (cut.rows.tokens == 0) & (cut.rows.begins < cut.group.prefix)
    return found


def shared_tokens(cut: Cut, step: int) -> Indices:
    """Return how many tokens of the query each item shares, [N]. :func:`payer` says which one pays for the query.

    An item counts once, however many labels it has. What is longer than a step is computed like a prefix of its own, so
    it shares whole steps alone.
    """
    ends, rows = cut.group.prefix_ends.astype(np.int64), cut.rows
    is_short = np.zeros(len(cut.group), np.bool_)
    is_short[rows.items[(rows.branches < 0) & (rows.tokens <= step)]] = True
    is_scored = np.zeros(len(cut.group), np.bool_)
    is_scored[rows.items] = is_scored[cut.branches.items] = True
    return np.where(cut.extends & is_scored, np.where(is_short, ends, ends // step * step), 0)


def payer(cut: Cut) -> int | None:
    """Return the item that pays for a query that is not in the cache; None if no item shares it.

    It is the first one that has a row behind the query, or else the first one that has a branch.
    """
    extends = cut.extends
    for items in (cut.rows.items[cut.rows.branches < 0], cut.branches.items):
        if len(of_query := items[extends[items]]):
            return int(of_query.min())
    return None


def cached_tokens(cut: Cut, step: int) -> int:
    """Return the tokens of the query that items share, where it is not in the cache."""
    shared, first = shared_tokens(cut, step), payer(cut)
    return int(shared.sum()) - (0 if first is None else int(shared[first]))


def estimate(estimator: Estimator, cut: Cut) -> Estimate:
    """Estimate a cut by the stored rates."""
    total, rows, branches, group = NOTHING, cut.rows, cut.branches, cut.group
    for number, choice in enumerate(cut.choices):
        items = cut.items_of(number)
        if group.labels is None:
            total += estimator.of(choice.algorithm, group.only(items))
            continue
        prefix = 0 if choice.algorithm is Algorithm.SERIAL else group.prefix
        if prefix and not group.cached:
            total += estimator.long(prefix).sum()
        mine = cut.choice_of[rows.items] == number
        behind_query = mine & (rows.branches < 0)
        # What is read at several tokens shares no step with what is read at one.
        for some in (behind_query & (rows.tails > 0), behind_query & (rows.tails == 0)):
            total += estimator.items(rows.takes[some], prefix)
        of_choice = np.flatnonzero(cut.choice_of[branches.items] == number)
        behind = np.bincount(rows.branches[rows.branches >= 0], rows.tails[rows.branches >= 0], len(branches))
        begins, ends = branches.begins[of_choice], branches.ends[of_choice]
        total += estimator.as_prefixes(ends - begins, begins).sum()
        total += estimator.behind_prefixes(behind[of_choice].astype(np.int64), ends).sum()
        total += estimator.heads(int(rows.reads[mine].sum()) + len(of_choice))
    return total
