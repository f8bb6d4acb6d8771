"""Measure work: how much there is to compute, as an equivalent number of tokens.

This measure decides the size of chunks and of claims, and the speed of workers is reported in it. The length of the
sequences would not do: 500 items of 20 tokens behind a query of 2,000 tokens are sequences of 1,010,000 tokens in all,
but only 12,000 of them are computed, since the items share the work of the query. So a row counts its own tokens and
the targets behind it, and the prefix counts once for all rows that are scored together. A token that attends to a long
prefix takes longer than one without a prefix: it counts as the number of prefixless tokens that take as long.

A short prefix is not shared: it is computed again with each row. So it counts with each row, and not once for all. How
short that is may be set for a worker, but the price must not depend on the worker, so this counts with the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from scoring.chunk import Chunk
from scoring.layout import Continuations, GroupWork, Rows
from scoring.planning.algorithms import Policy
from scoring.planning.cut import cut
from scoring.planning.estimates import Estimator, ModelSize, Rates, Shapes
from scoring.planning.folds import ATTENTION_TOKENS, price, work
from scoring.planning.lengths import GroupLengths
from scoring.planning.planner import Planner

SHORTEST_SHARED = 64
"""Tokens of the shortest query that items share, by default."""

REFERENCE = Planner(
    Policy("auto", mask="auto", prefill_extend_enabled=True, min_prefix_tokens=SHORTEST_SHARED, max_packed_tokens=0),
    Estimator(
        ModelSize(layers=1, linear_flop=1e9, pair_flop=1e9 / ATTENTION_TOKENS, head_flop=0.0),
        Rates(((256, 1.0),), prefix=1.0, segment=1.0, dense=1.0, head=1.0, layer_seconds=0.0),
        Shapes(step_sizes=(64, 128, 256), max_rows=256, packed_sizes=(1,), head_rows=128),
    ),
)
"""Cuts by the sizes of a CPU's steps, as they are by default, and by the work of a token as its time."""


def work_of_prefix(length: float) -> int:
    """Return the work of computing a prefix for all rows behind it, which is nothing if they do not share it.

    On average, each of its tokens attends to half of it. It is stored with the prefix, where claims and counts find it.
    """
    return round(work(length / 2, length)) if length >= SHORTEST_SHARED else 0


def work_of_each_row(rows: Rows, continuations: Continuations | None, prefix: int) -> npt.NDArray[np.float64]:
    """Return the work of each row, float64 [N], without the prefix that it shares: see :func:`folds.price`.

    prefix: tokens of the prefix of all rows.
    """
    if len(rows) == 1 and continuations is None:
        return np.array([_work_of_lone_row(prefix, int(rows.prefix_ends[0]), int(rows.lengths[0]))])
    return price(cut(REFERENCE, GroupLengths.of(prefix, [(rows, continuations)])))


@lru_cache(maxsize=4_096)
def _work_of_lone_row(prefix: int, prefix_end: int, length: int) -> float:
    """Return the work of a row that is the only one. Calls have such rows, and arrays of one number are slow."""
    group = GroupLengths(prefix, np.array([length], np.int32), np.array([prefix_end], np.int32))
    return float(price(cut(REFERENCE, group))[0])


def work_of_rows(rows: Rows, continuations: Continuations | None, prefix: int) -> int:
    """Return the work of all rows of a chunk together, without the prefix that they share."""
    return round(float(work_of_each_row(rows, continuations, prefix).sum()))


def chunk_of(first_item: int, rows: Rows, continuations: Continuations | None = None) -> Chunk:
    """Return a chunk with its work. Some row must see the whole prefix."""
    prefix = int(rows.prefix_ends.max(initial=0))
    return Chunk(first_item, rows, continuations, work=work_of_rows(rows, continuations, prefix))


def work_of_group(prefix_length: int, chunks: Sequence[Chunk]) -> int:
    """Return the work of chunks that share a prefix, the prefix included; 0 if nothing of them is computed.

    This is the price of a job. Jobs that share a prefix cost less together if they are scored together.
    """
    waiting = [chunk.work for chunk in chunks if not chunk.is_known]
    return sum(waiting) + work_of_prefix(prefix_length) if waiting else 0


def work_of_prefixes(groups: Sequence[GroupWork], cached_tokens: Mapping[int, int]) -> int:
    """Return the work of what was computed of the prefixes of groups.

    cached_tokens: those of each :class:`scoring.layout.ScoredChunk`, by the chunk's id.
    """
    done = 0
    for group in groups:
        prefix_tokens = sum(int(chunk.rows.prefix_ends.sum()) for chunk in group.chunks)
        computed = min(prefix_tokens - sum(cached_tokens[chunk.id] for chunk in group.chunks), len(group.prefix))
        done += work_of_prefix(len(group.prefix)) - work_of_prefix(len(group.prefix) - computed)
    return done
