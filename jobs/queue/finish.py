"""Committing scores. A chunk counts once, for whoever holds its batch, and the last one ends its job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from jobs.queue.ending import end_jobs, locking
from jobs.store.codec import pack_scores
from jobs.store.database import Database
from jobs.store.records import Finished, JobStatus
from jobs.store.tables import CLAIMED, ChunkState, chunk_scores, chunks, jobs
from scoring.layout import Scored


def finish(db: Database, batch_id: str, scored: Sequence[Scored]) -> Finished:
    """Store what was scored of a batch; a batch may be finished in several goes.

    Chunks that are not the batch's, or not any more, are fenced: counted and otherwise ignored.
    """
    by_id = {chunk.id: chunk for chunk in scored}
    if not by_id:
        return Finished((), 0)
    held = {"chunk_ids": list(by_id), "of_batch": batch_id}
    with db.write() as connection:
        connection.execute(_LOCK_JOBS, held)
        done = connection.execute(_UPDATE_DONE, held).all()
        if not done:
            return Finished((), len(by_id))
        for row in done:
            if len(by_id[row.id].scores) != row.item_count:
                raise ValueError(f"chunk {row.id} has {row.item_count} items, scored were {len(by_id[row.id].scores)}")
        done_ids = [row.id for row in done]
        connection.execute(insert(chunk_scores), [_scores_row(by_id[chunk_id]) for chunk_id in done_ids])
        complete = _count_down(connection, db, done_ids)
        ended = end_jobs(connection, db, complete, JobStatus.SUCCEEDED) if complete else []
        return Finished(tuple(ended), fenced=len(by_id) - len(done))


# The fence: the id of the batch is known to its claimant alone, and leaves the chunks when the lease is lost.
_HELD = (
    chunks.c.id.in_(bindparam("chunk_ids", expanding=True)),
    chunks.c.batch_id == bindparam("of_batch"),
    CLAIMED,
)
_LOCK_JOBS = locking(select(chunks.c.job_id).where(*_HELD))
_UPDATE_DONE = (
    update(chunks).where(*_HELD).values(state=ChunkState.DONE.value).returning(chunks.c.id, chunks.c.item_count)
)


def _scores_row(chunk: Scored) -> dict[str, object]:
    logprobs = chunk.scores.logprobs
    return {
        "chunk_id": chunk.id,
        "logits": pack_scores(chunk.scores.logits),
        "logprobs": None if logprobs is None else pack_scores(logprobs),
        "cached_tokens": chunk.cached_tokens,
    }


def _count_down(connection: Connection, db: Database, done: Sequence[int]) -> list[str]:
    """Take finished chunks off their jobs' counters, in place, and return the ids of the jobs that have none left.

    Two transactions that finish the last two chunks can't both read "one left": the second waits for the first's row.
    """
    counted = connection.execute(db.built(_update_counters), {"chunk_ids": list(done)})
    return [row.id for row in counted if row.remaining_chunks == 0]


def _update_counters(db: Database) -> ReturningUpdate[Any]:
    share = (
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
    return (
        update(jobs)
        .where(jobs.c.id == share.c.job_id)
        .values(
            remaining_chunks=jobs.c.remaining_chunks - share.c.chunks,
            scored_items=jobs.c.scored_items + share.c.item_count,
            cached_tokens=jobs.c.cached_tokens + share.c.cached_tokens,
            status=JobStatus.RUNNING.value,
            started_at=func.coalesce(jobs.c.started_at, db.now),
        )
        .returning(jobs.c.id, jobs.c.remaining_chunks)
    )
