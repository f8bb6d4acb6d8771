"""Measure work: how much there is to compute, as an equivalent number of tokens.

This measure decides the size of chunks and of claims, and the speed of workers is reported in it. The length of the
sequences would not do: 500 items of 20 tokens behind a query of 2,000 tokens are sequences of 1,010,000 tokens in all,
but only 12,000 of them are computed, since the items share the work of the query. So a row counts its own tokens, and
the prefix counts once for all rows that are scored together. A token that attends to a long prefix takes longer than
one without a prefix: it counts as the number of prefixless tokens that take as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from scoring.layout import GroupWork, Rows

ATTENTION_TOKENS = 3_840
"""Number of preceding tokens whose attention costs as much as all else that is computed for one token.

A token takes 2 operations per weight of the layers, and each pair of tokens takes 4 x query heads x head_dim x layers.
For Qwen3-0.6B the ratio is 2 x 440e6 / (4 x 2,048 x 28); it is similar for the other models.
"""

Number = TypeVar("Number", float, npt.NDArray[np.float64])


def work(prefix_length: Number, own_tokens: Number) -> Number:
    """Return the work of computing tokens behind a prefix, the work of the prefix itself excluded."""
    return own_tokens * (1 + prefix_length / ATTENTION_TOKENS)


def work_of_prefix(length: float) -> int:
    """Return the work of computing a prefix. On average, each of its tokens attends to half of it."""
    return round(work(length / 2, float(length)))


def work_of_each_row(rows: Rows) -> npt.NDArray[np.float64]:
    """Return the work of each row, float64 [N], prefix excluded. An empty row counts one token: it is scored, too."""
    return work(rows.prefix_ends.astype(np.float64), np.maximum(rows.lengths, 1).astype(np.float64))


def work_of_rows(rows: Rows) -> int:
    """Return the work of all rows together, their prefix excluded."""
    return round(float(work_of_each_row(rows).sum()))


def work_of_group(prefix_length: int, rows: Iterable[Rows]) -> int:
    """Return the work of rows that share a prefix, the prefix included; 0 if there are none.

    This is the price of a job. Jobs that share a prefix cost less together if they are scored together.
    """
    of_each = [work_of_rows(part) for part in rows]
    return sum(of_each) + work_of_prefix(prefix_length) if of_each else 0


def work_done(groups: Sequence[GroupWork], cached_tokens: Mapping[int, int]) -> int:
    """Return the work that scoring groups took: that of all rows, and of each prefix that was not cached completely.

    cached_tokens: those of each :class:`scoring.layout.ScoredChunk`, by the chunk's id.
    """
    done = 0
    for group in groups:
        done += sum(work_of_rows(chunk.rows) for chunk in group.chunks)
        prefix_tokens = sum(int(chunk.rows.prefix_ends.sum()) for chunk in group.chunks)
        if sum(cached_tokens[chunk.id] for chunk in group.chunks) < prefix_tokens:
            done += work_of_prefix(len(group.prefix))
    return done
