"""Committing scores: each chunk once, under the fence of its batch. The last chunk of a job ends the job."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, func, insert, select, update

from jobs.queue.ending import end_jobs, lock_jobs
from jobs.store.clock import NOW
from jobs.store.codec import pack_scores
from jobs.store.database import Database, Transaction
from jobs.store.records import Finished, JobStatus
from jobs.store.tables import CLAIMED, ChunkState, chunk_scores, chunks, jobs
from scoring.layout import ScoredChunk


def finish(db: Database, batch_id: str, scored: Sequence[ScoredChunk]) -> Finished:
    """Store the scores of some chunks of a batch. A batch may be finished in several calls.

    Chunks that the batch does not hold, or no longer holds, are counted as fenced and otherwise ignored.
    """
    by_id = {chunk.id: chunk for chunk in scored}
    if not by_id:
        return Finished((), 0)
    held = {"chunk_ids": list(by_id), "of_batch": batch_id}
    with db.write() as tx:
        tx.execute(_LOCK_JOBS, held)
        done = tx.execute(_UPDATE_DONE, held).all()
        if not done:
            return Finished((), len(by_id))
        for row in done:
            if len(by_id[row.id].scores) != row.item_count:
                raise ValueError(f"chunk {row.id} has {row.item_count} items, scored were {len(by_id[row.id].scores)}")
        done_ids = [row.id for row in done]
        tx.execute(insert(chunk_scores), [_scores_row(by_id[chunk_id]) for chunk_id in done_ids])
        complete = _count_down(tx, done_ids)
        ended = end_jobs(tx, complete, JobStatus.SUCCEEDED) if complete else []
        return Finished(tuple(ended), fenced=len(by_id) - len(done))


# The fence: only the worker that claimed the batch knows its id, and the chunks lose the id when the lease runs out.
_HELD = (chunks.c.id.in_(bindparam("chunk_ids", expanding=True)), chunks.c.batch_id == bindparam("of_batch"), CLAIMED)
_LOCK_JOBS = lock_jobs(select(chunks.c.job_id).where(*_HELD))
_UPDATE_DONE = (
    update(chunks).where(*_HELD).values(state=ChunkState.DONE.value).returning(chunks.c.id, chunks.c.item_count)
)


def _scores_row(chunk: ScoredChunk) -> dict[str, object]:
    logprobs = chunk.scores.logprobs
    return {
        "chunk_id": chunk.id,
        "logits": pack_scores(chunk.scores.logits),
        "logprobs": None if logprobs is None else pack_scores(logprobs),
        "cached_tokens": chunk.cached_tokens,
    }


def _count_down(tx: Transaction, done: Sequence[int]) -> list[str]:
    """Subtract finished chunks from the counters of their jobs. Return the ids of jobs that have no chunk left.

    The counters are changed in place. So if two transactions finish the last two chunks of a job, the second one waits
    for the first and then reads zero.
    """
    counted = tx.execute(_UPDATE_COUNTERS, {"chunk_ids": list(done)})
    return [row.id for row in counted if row.remaining_chunks == 0]


_SHARE = (
    select(
        chunks.c.job_id,
        func.count().label("chunks"),
        func.sum(chunks.c.item_count).label("item_count"),
        func.sum(chunk_scores.c.cached_tokens).label("cached_tokens"),
    )
    .join(chunk_scores, chunk_scores.c.chunk_id == chunks.c.id)
    .where(chunks.c.id.in_(bindparam("chunk_ids", expanding=True)))
    .group_by(chunks.c.job_id)
    .subquery("share")
)
_UPDATE_COUNTERS = (
    update(jobs)
    .where(jobs.c.id == _SHARE.c.job_id)
    .values(
        remaining_chunks=jobs.c.remaining_chunks - _SHARE.c.chunks,
        scored_items=jobs.c.scored_items + _SHARE.c.item_count,
        cached_tokens=jobs.c.cached_tokens + _SHARE.c.cached_tokens,
        status=JobStatus.RUNNING.value,
        started_at=func.coalesce(jobs.c.started_at, NOW),
    )
    .returning(jobs.c.id, jobs.c.remaining_chunks)
)
