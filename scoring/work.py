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
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from scoring.layout import Chunk, Continuations, GroupWork, Rows
from scoring.planning.continuations import ASSUMED_LABELS

ATTENTION_TOKENS = 3_840
"""Number of preceding tokens whose attention costs as much as all else that is computed for one token.

A token takes 2 operations per weight of the layers, and each pair of tokens takes 4 x query heads x head_dim x layers.
For Qwen3-0.6B the ratio is 2 x 440e6 / (4 x 2,048 x 28); it is similar for the other models.
"""

STEP_SIZES = (64, 128, 256)
"""Tokens of the steps of a CPU, by default."""
STEP_TOKENS = STEP_SIZES[-1]
SHORTEST_SHARED = 64
"""Tokens of the shortest query that items share, by default."""

Floats = npt.NDArray[np.float64]
Number = TypeVar("Number", float, npt.NDArray[np.float64])


def work(prefix_length: Number, own_tokens: Number) -> Number:
    """Return the work of computing tokens behind a prefix, the work of the prefix itself excluded."""
    return own_tokens * (1 + prefix_length / ATTENTION_TOKENS)


def work_of_prefix(length: float) -> int:
    """Return the work of computing a prefix for all rows behind it, which is nothing if they do not share it.

    On average, each of its tokens attends to half of it. :mod:`jobs.store.prefix_work` says the same in SQL.
    """
    return round(work(length / 2, float(length))) if length >= SHORTEST_SHARED else 0


def work_of_each_row(rows: Rows, continuations: Continuations | None = None) -> npt.NDArray[np.float64]:
    """Return the work of each row, float64 [N], without a prefix that it shares. At least one token counts.

    An empty row is scored, too. A row whose prefix is too short to be shared counts the prefix with its own tokens. The
    last target of a continuation is not computed, since nothing is read behind it. The others are computed in the way
    that a worker would take: see :func:`are_branches`.
    """
    shared, whole = _shared_prefix(rows.prefix_ends.astype(np.float64)), rows.sequence_lengths.astype(np.float64)
    alone = work(shared, np.maximum(whole - shared, 1))
    if continuations is None or not len(rows) or not len(continuations):
        return alone
    kept = continuations.kept.reshape(len(rows), -1).astype(np.float64)
    targets = continuations.lengths.reshape(kept.shape).astype(np.float64)
    is_long = whole - shared > STEP_TOKENS
    begins, whole = shared[:, None], whole[:, None]
    at_end = (targets == 1) & (kept == whole)
    branching = (targets > 0) & ~at_end & are_branches(begins, kept, targets)
    in_rows = (targets > 0) & ~at_end & ~branching
    # A label that keeps no token behind the query computes the token before it again, since it is read there. Behind an
    # item without tokens it is read at the query's last token, which is kept.
    own = np.maximum(kept - begins, np.where((kept == begins) & (whole == begins), 0, 1))
    sharing = in_rows & (targets > 1) & (own + targets - 1 <= STEP_TOKENS)
    of_rows = work(begins, np.where(sharing, 0, own) + targets - 1)
    behind_branches = work(kept, targets - 1)
    # Labels that keep as much of the item share a branch.
    ends = np.sort(np.where(branching, kept, 0), axis=1)
    is_new = (ends > 0) & (np.diff(ends, axis=1, prepend=0) > 0)
    of_branches = work(begins, np.maximum(ends - begins, 1))
    # What is read at the end of a long item is read at the end of its branch, if there is one.
    has_own_row = at_end.any(axis=1) & ~((branching & (kept == whole)).any(axis=1) & is_long)
    total: Floats = np.where(has_own_row, alone, 0.0)
    for part, counts in ((of_rows, in_rows), (behind_branches, branching), (of_branches, is_new)):
        total += np.where(counts, part, 0.0).sum(axis=1)
    total += _shared_items(sharing, kept, own, work(begins, own), targets)
    return np.maximum(total, 1.0)


def _shared_prefix(prefix_ends: Floats) -> Floats:
    """Return how many tokens of its prefix each row shares with others: all, or none of a short one."""
    found: Floats = np.where(prefix_ends < SHORTEST_SHARED, 0.0, prefix_ends)
    return found


def _shared_items(sharing: npt.NDArray[np.bool_], kept: Floats, own: Floats, item: Floats, targets: Floats) -> Floats:
    """Return the work of the tokens of items that labels share in rows, for each item, float64 [N].

    Labels that keep as much of an item share its tokens, as many of them as fit into a step. All arrays are [N, M].
    kept: tokens of query and item; own: those that are computed; item: the work of these.
    """
    of_rows, columns = np.nonzero(sharing)
    # An item and what is kept of it, as one number: NumPy sorts pairs slowly.
    keys, kind_of = np.unique((of_rows << 32) + kept[of_rows, columns].astype(np.int64), return_inverse=True)
    # The share of a step that a label takes of what its item leaves free.
    shares: Floats = 1 / _labels_in_a_step(own, targets)[of_rows, columns]
    rows = np.maximum(1.0, np.bincount(kind_of, shares, minlength=len(keys)))
    of_kind: Floats = np.zeros(len(keys))
    of_kind[kind_of] = item[of_rows, columns]
    return np.bincount(keys >> 32, rows * of_kind, minlength=len(sharing)).astype(np.float64)


def _labels_in_a_step(own: Floats, targets: Floats) -> Floats:
    """Return how many labels with so many targets fit into a step with their item, at least one."""
    found: Floats = np.maximum((STEP_TOKENS - own) // np.maximum(targets - 1, 1), 1.0)
    return found


def are_branches(begins: Floats, kept: Floats, targets: Floats) -> npt.NDArray[np.bool_]:
    """Return which labels are computed behind a prefix of query and item, and not in rows of item and label.

    begins: tokens of the query; kept: tokens of query and item, float64, in any shape. A worker's planner decides this
    by estimates (:mod:`scoring.planning.continuations`). The price must not depend on the worker, so this counts the
    same padded steps with the sizes of a CPU's steps and the attention of :data:`ATTENTION_TOKENS`.
    """
    begin: Floats = np.minimum(_shared_prefix(begins), kept - 1)
    whole_steps: Floats = begin // STEP_TOKENS * STEP_TOKENS
    length = kept - begin + targets - 1
    long_row: Floats = work(whole_steps, _padded(begin - whole_steps + length))
    items = np.ceil(ASSUMED_LABELS / _labels_in_a_step(kept - begin, targets)) * work(begin, kept - begin)
    sharing = items + ASSUMED_LABELS * work(begin, targets - 1)
    alone = ASSUMED_LABELS * np.where(length > STEP_TOKENS, long_row, work(begin, length))
    rows = np.where((targets > 1) & (length <= STEP_TOKENS), sharing, alone)
    branch = work(whole_steps, _padded(kept - whole_steps)) + work(kept, _padded(ASSUMED_LABELS * (targets - 1)))
    found: npt.NDArray[np.bool_] = (kept - begin > 1) & (branch < rows)
    return found


def _padded(tokens: Floats) -> Floats:
    """Return the tokens of the steps that so many take: whole ones, and the smallest that holds the rest."""
    rest = tokens % STEP_TOKENS
    sizes = np.select([rest == 0, *(rest <= size for size in STEP_SIZES)], [0, *STEP_SIZES])
    padded: Floats = tokens - rest + sizes
    return padded


def work_of_rows(rows: Rows, continuations: Continuations | None = None) -> int:
    """Return the work of all rows of a chunk together, without a prefix that they share."""
    return round(float(work_of_each_row(rows, continuations).sum()))


def chunk_of(first_item: int, rows: Rows, continuations: Continuations | None = None) -> Chunk:
    """Return a chunk with its work."""
    return Chunk(first_item, rows, continuations, work=work_of_rows(rows, continuations))


def work_of_group(prefix_length: int, chunks: Sequence[Chunk]) -> int:
    """Return the work of chunks that share a prefix, the prefix included; 0 if there are none.

    This is the price of a job. Jobs that share a prefix cost less together if they are scored together.
    """
    return sum(chunk.work for chunk in chunks) + work_of_prefix(prefix_length) if chunks else 0


def work_done(groups: Sequence[GroupWork], cached_tokens: Mapping[int, int]) -> int:
    """Return the work that scoring groups took: that of all rows, and of each prefix that was not cached completely.

    cached_tokens: those of each :class:`scoring.layout.ScoredChunk`, by the chunk's id.
    """
    done = 0
    for group in groups:
        done += sum(work_of_rows(chunk.rows, chunk.continuations) for chunk in group.chunks)
        prefix_tokens = sum(int(chunk.rows.prefix_ends.sum()) for chunk in group.chunks)
        if sum(cached_tokens[chunk.id] for chunk in group.chunks) < prefix_tokens:
            done += work_of_prefix(len(group.prefix))
    return done
