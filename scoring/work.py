"""How much there is to compute, in tokens: what chunks are cut by, claims are bounded by, and workers' pace is told in.

A token of a whole sequence says little of that: items that share a query share its work, and 500 items of 20 tokens
behind a query of 2,000 are 1,010,000 tokens of sequences, of which 12,000 are computed. So rows count their own tokens,
and a query counts once for all that are scored together. A token that looks back at a long query takes longer than one
that does not: it counts for as many as take as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from scoring.layout import GroupWork, Rows

ATTENTION_TOKENS = 3_840
"""Tokens to look back at that cost as much as a token itself. 2 operations for each of a layer stack's weights, against
4 x query heads x head_dim x layers for each pair: of Qwen3-0.6B 2 x 440e6 / (4 x 2,048 x 28). Others are like it."""

Number = TypeVar("Number", float, npt.NDArray[np.float64])


def work(prefix_length: Number, own_tokens: Number) -> Number:
    """What tokens behind a prefix take to compute, in tokens that have nothing before them; the prefix left out."""
    return own_tokens * (1 + prefix_length / ATTENTION_TOKENS)


def prefill_work(length: float) -> int:
    """What a prefix takes itself: on average, a token of it sees half of it."""
    return round(work(length / 2, float(length)))


def work_of_each(rows: Rows) -> npt.NDArray[np.float64]:
    """float64 [N]: what each row takes. An empty one is not nothing: it is read, too."""
    return work(rows.prefix_ends.astype(np.float64), np.maximum(rows.lengths, 1).astype(np.float64))


def rows_work(rows: Rows) -> int:
    """What rows take, their prefix left out."""
    return round(float(work_of_each(rows).sum()))


def work_done(groups: Sequence[GroupWork], cached_tokens: Mapping[int, int]) -> int:
    """What scoring groups took: all rows, and each prefix once unless all of it was there already.

    cached_tokens: of each chunk by its id, as :class:`scoring.layout.Scored` says.
    """
    done = 0
    for group in groups:
        done += sum(rows_work(chunk.rows) for chunk in group.chunks)
        to_find = sum(int(chunk.rows.prefix_ends.sum()) for chunk in group.chunks)
        if sum(cached_tokens[chunk.id] for chunk in group.chunks) < to_find:
            done += prefill_work(len(group.prefix))
    return done
