"""Committing scores: each chunk once, under the fence of its batch. The last chunk of a job ends the job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import CTE, Row, Update, bindparam, column, func, insert, select, update
from sqlalchemy.dialects.postgresql import ARRAY

from jobs.queue.ending import end_jobs, lock_jobs
from jobs.store.clock import NOW
from jobs.store.codec import pack_scores
from jobs.store.database import Database, Transaction
from jobs.store.lists import is_one_of
from jobs.store.records import Finished, JobStatus
from jobs.store.signed_result import CallResult, sign_result
from jobs.store.tables import CLAIMED, ChunkState, chunk_scores, chunks, jobs
from scoring.layout import LabelScores, ScoredChunk


def finish(db: Database, batch_id: str, scored: Sequence[ScoredChunk]) -> Finished:
    """Store the scores of some chunks of a batch. A batch may be finished in several calls.

    Chunks that the batch does not hold, or no longer holds, are counted as fenced and otherwise ignored.
    """
    by_id = {chunk.id: chunk for chunk in scored}
    if not by_id:
        return Finished((), 0)
    values = {"chunk_ids": list(by_id), "of_batch": batch_id}
    with db.write() as tx:
        tx.execute(_LOCK_JOBS, values)
        done = _store(tx, values, by_id)
        for row in done:
            if len(by_id[row.id].scores) != row.item_count:
                raise ValueError(f"chunk {row.id} has {row.item_count} items, scored were {len(by_id[row.id].scores)}")
        complete = {row.job_id: row for row in done if row.remaining_chunks == 0}
        ended = end_jobs(tx, complete, JobStatus.SUCCEEDED) if complete else {}
    results = _signed_results(ended, complete, done, by_id)
    return Finished(tuple(ended), fenced=len(by_id) - len(done), results=results)


def _store(tx: Transaction, values: Mapping[str, Any], scored: Mapping[int, ScoredChunk]) -> Sequence[Row[Any]]:
    """Store the scores of the chunks that the batch holds, and subtract these chunks from the counters of their jobs.

    Returns their rows with columns of their jobs. The counters are changed in place. So if two transactions finish the
    last two chunks of a job, the second one waits for the first and then reads zero.
    """
    if not tx.is_sqlite:
        rows = [_scores_row(chunk) for chunk in scored.values()]
        return tx.execute(_FINISH, {**values, **{name: [row[name] for row in rows] for name in _GIVEN}}).all()
    # SQLite can't change several tables in one statement.
    done = list(tx.scalars(_UPDATE_DONE, values))
    if not done:
        return ()
    tx.execute(insert(chunk_scores), [_scores_row(scored[chunk_id]) for chunk_id in done])
    tx.execute(_COUNT_DOWN, {"chunk_ids": done})
    return tx.execute(_SELECT_DONE, {"chunk_ids": done}).all()


# The fence: only the worker that claimed the batch knows its id, and the chunks lose the id when the lease runs out.
_HELD = (is_one_of(chunks.c.id, "chunk_ids"), chunks.c.batch_id == bindparam("of_batch"), CLAIMED)
_LOCK_JOBS = lock_jobs(select(chunks.c.job_id).where(*_HELD))


def _scores_row(chunk: ScoredChunk) -> dict[str, object]:
    logprobs = chunk.scores.logprobs
    return {
        "chunk_id": chunk.id,
        "logits": pack_scores(chunk.scores.logits),
        "logprobs": None if logprobs is None else pack_scores(logprobs),
        "cached_tokens": chunk.cached_tokens,
    }


def _counting_down(done: CTE) -> Update:
    """Return a statement that subtracts finished chunks, with their numbers of items and cached tokens, from jobs."""
    share = (
        select(
            done.c.job_id,
            func.count().label("chunks"),
            func.sum(done.c.item_count).label("item_count"),
            func.sum(done.c.cached_tokens).label("cached_tokens"),
        )
        .group_by(done.c.job_id)
        .subquery("share")
    )
    return (
        update(jobs)
        .where(jobs.c.id == share.c.job_id)
        .values(
            remaining_chunks=jobs.c.remaining_chunks - share.c.chunks,
            scored_items=jobs.c.scored_items + share.c.item_count,
            cached_tokens=jobs.c.cached_tokens + share.c.cached_tokens,
            status=JobStatus.RUNNING.value,
            started_at=func.coalesce(jobs.c.started_at, NOW),
        )
    )


_OF_JOB = ("id", "remaining_chunks", "total_items", "cached_tokens", "notice_key")
_OF_CHUNK = chunks.c["id", "job_id", "first_item", "item_count"]
_DONE = update(chunks).where(*_HELD).values(state=ChunkState.DONE.value)

_UPDATE_DONE = _DONE.returning(chunks.c.id)
_COUNT_DOWN = _counting_down(
    select(*_OF_CHUNK, chunk_scores.c.cached_tokens)
    .join(chunk_scores)
    .where(is_one_of(chunks.c.id, "chunk_ids"))
    .cte("done")
)
_SELECT_DONE = select(*_OF_CHUNK, *jobs.c[_OF_JOB[1:]]).join(jobs).where(is_one_of(chunks.c.id, "chunk_ids"))

# PostgreSQL runs all of it as one statement.
_GIVEN = ("chunk_id", "logits", "logprobs", "cached_tokens")
_SCORES = (
    func.unnest(*(bindparam(name, type_=ARRAY(chunk_scores.c[name].type, dimensions=1)) for name in _GIVEN))
    .table_valued(*(column(name, chunk_scores.c[name].type) for name in _GIVEN), name="scores")
    .render_derived()
)
_HELD_NOW = _DONE.returning(*_OF_CHUNK).cte("held")
_DONE_NOW = (
    select(*_HELD_NOW.c, *(_SCORES.c[name] for name in _GIVEN))
    .join(_SCORES, _SCORES.c.chunk_id == _HELD_NOW.c.id)
    .cte("done")
)
_COUNTED = _counting_down(_DONE_NOW).returning(*jobs.c[_OF_JOB]).cte("counted")
_FINISH = (
    select(*_HELD_NOW.c, *(_COUNTED.c[name] for name in _OF_JOB[1:]))
    .join(_COUNTED, _COUNTED.c.id == _HELD_NOW.c.job_id)
    .add_cte(
        insert(chunk_scores).from_select(_GIVEN, select(*(_DONE_NOW.c[name] for name in _GIVEN))).cte("stored"),
    )
)


def _signed_results(
    ended: Mapping[str, float],
    jobs_of: Mapping[str, Row[Any]],
    done: Iterable[Row[Any]],
    scored: Mapping[int, ScoredChunk],
) -> dict[str, str]:
    """Return the results of jobs that have a key and whose chunks were all finished together, if they are small.

    ended: when the jobs ended; done: the finished chunks.
    """
    keyed = {job_id: jobs_of[job_id] for job_id in ended if jobs_of[job_id].notice_key is not None}
    chunks_of: dict[str, list[Row[Any]]] = {job_id: [] for job_id in keyed}
    for chunk in done:
        if chunk.job_id in keyed:
            chunks_of[chunk.job_id].append(chunk)
    results: dict[str, str] = {}
    for job_id, job in keyed.items():
        parts = sorted(chunks_of[job_id], key=lambda chunk: chunk.first_item)
        if sum(part.item_count for part in parts) != job.total_items:
            continue
        scores = _joined([scored[part.id].scores for part in parts])
        text = sign_result(CallResult(ended[job_id], job.cached_tokens, scores), job.notice_key)
        if text is not None:
            results[job_id] = text
    return results


def _joined(parts: Sequence[LabelScores]) -> LabelScores:
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    return LabelScores(
        logits=np.concatenate([part.logits for part in parts]),
        logprobs=np.concatenate(logprobs) if logprobs else None,
    )
