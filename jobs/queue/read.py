"""Looking at jobs. A job of another tenant, or one whose time of keeping is over, is a missing job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from sqlalchemy import Row, and_, bindparam, func, select

from checkpoints.card import ModelCard
from jobs.store.codec import unpack_ids, unpack_options, unpack_scores
from jobs.store.database import Database
from jobs.store.records import Backlog, JobError, JobRecord, JobStatus, Origin, ScorePage
from jobs.store.tables import WAITING, ChunkState, chunk_scores, chunks, jobs
from jobs.tenancy.ownership import find_job, owned, visible
from jobs.webhooks.outbox import unpack_webhook
from scoring.error_codes import ErrorCode
from scoring.layout import Head, LabelScores
from scoring.options import Priority

IDS_PER_QUERY = 5_000
"""Both databases take some 32,000 parameters in a statement."""


def job_record(row: Row[Any]) -> JobRecord:
    """A row of the jobs table as a record."""
    return JobRecord(
        id=row.id,
        tenant=row.tenant,
        model=row.model,
        status=JobStatus(row.status),
        origin=Origin(row.origin),
        priority=Priority(row.priority),
        total_items=row.total_items,
        scored_items=row.scored_items,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        expires_at=row.expires_at,
        options=unpack_options(row.options),
        label_token_ids=tuple(unpack_ids(row.label_token_ids).tolist()),
        metadata=row.metadata,
        warnings=tuple(row.warnings),
        error=JobError(ErrorCode(row.error_code), row.error_message) if row.error_code else None,
        webhook=unpack_webhook(row.webhook),
    )


def get_job(db: Database, tenant: str, job_id: str) -> JobRecord:
    """One job. Raises RequestError JOB_NOT_FOUND."""
    with db.read() as connection:
        return job_record(find_job(connection, db, tenant, job_id))


def list_jobs(
    db: Database, tenant: str, status: JobStatus | None = None, limit: int = 20, after: str | None = None
) -> list[JobRecord]:
    """A tenant's jobs, newest first, those of ``/v1/score`` left out. after: the id that the page comes after."""
    query = select(jobs).where(owned(db, tenant), jobs.c.origin == Origin.JOB.value)
    if status is not None:
        query = query.where(jobs.c.status == status.value)
    if after is not None:
        query = query.where(jobs.c.id < after)
    with db.read() as connection:
        return [job_record(row) for row in connection.execute(query.order_by(jobs.c.id.desc()).limit(limit))]


def read_scores(db: Database, tenant: str, job_id: str, offset: int, limit: int) -> ScorePage:
    """What was scored of items ``offset`` to ``offset + limit`` (exclusive). Raises RequestError JOB_NOT_FOUND."""
    job = get_job(db, tenant, job_id)
    stop = min(offset + limit, job.total_items)
    # Chunks lie end to end. Found by its place, the first of the page costs the same however many come before it.
    first = select(func.max(chunks.c.first_item)).where(chunks.c.job_id == job_id, chunks.c.first_item <= offset)
    with db.read() as connection:
        rows = connection.execute(
            select(chunks.c.first_item, chunks.c.item_count, chunk_scores.c.logits, chunk_scores.c.logprobs)
            .join(chunk_scores, chunk_scores.c.chunk_id == chunks.c.id)
            .where(
                chunks.c.job_id == job_id,
                chunks.c.state == ChunkState.DONE.value,
                chunks.c.first_item >= first.scalar_subquery(),
                chunks.c.first_item < stop,
            )
            .order_by(chunks.c.first_item)
        ).all()
    # The job may have been removed between the two reads; then there are no rows, as if nothing had been scored.
    indices = np.concatenate(
        [np.zeros(0, np.int64), *(np.arange(row.first_item, row.first_item + row.item_count) for row in rows)]
    )
    inside = (indices >= offset) & (indices < stop)
    labels = len(job.label_token_ids)
    scores = LabelScores(
        logits=unpack_scores([row.logits for row in rows], labels)[inside],
        logprobs=unpack_scores([row.logprobs for row in rows], labels)[inside]
        if job.options.head is Head.LOGPROBS
        else None,
    )
    return ScorePage(job, indices[inside], scores, has_more=stop < job.total_items)


def statuses(db: Database, job_ids: Iterable[str]) -> dict[str, JobStatus]:
    """Where many jobs are, whoever owns them: for those who wait for their ends. Removed ones are left out."""
    ids = list(job_ids)
    found: dict[str, JobStatus] = {}
    for start in range(0, len(ids), IDS_PER_QUERY):
        query = select(jobs.c.id, jobs.c.status).where(jobs.c.id.in_(ids[start : start + IDS_PER_QUERY]), visible(db))
        with db.read() as connection:
            found |= {row.id: JobStatus(row.status) for row in connection.execute(query)}
    return found


FOR_WORKER = and_(
    WAITING,
    chunks.c.model == bindparam("for_model"),
    chunks.c.tokenizer_fingerprint == bindparam("for_tokenizer"),
    chunks.c.longest_sequence <= bindparam("for_context"),
    chunks.c.highest_token < bindparam("for_vocabulary"),
)
"""Whether a chunk waits, and can be scored, and scored rightly, by a worker that serves what :func:`serving` says: it
holds ids of that tokenizer, and no sequence or id that the model is too small for.
"""


def serving(card: ModelCard) -> dict[str, str | int]:
    """The parameters of :data:`FOR_WORKER`."""
    return {
        "for_model": card.name,
        "for_tokenizer": card.tokenizer_fingerprint,
        "for_context": card.context_length,
        "for_vocabulary": card.vocabulary,
    }


def has_waiting(db: Database, card: ModelCard, *, interactive_only: bool = False) -> bool:
    """Whether there is work for workers that serve this; where asked, interactive work."""
    with db.read() as connection:
        return connection.scalar(_FIRST_INTERACTIVE if interactive_only else _FIRST, serving(card)) is not None


# In order, so that the head of an index is read: for just any one, PostgreSQL may read a table full of others.
_FIRST = select(chunks.c.id).where(FOR_WORKER).order_by(chunks.c.due_at, chunks.c.id).limit(1)
_FIRST_INTERACTIVE = _FIRST.where(chunks.c.interactive)


def backlog(db: Database, model: str) -> Backlog:
    """How much work waits for a model's workers, whether or not one that can take it is live.

    Counts it all: meant for gauges, not for every request.
    """
    with db.read() as connection:
        waiting, tokens = connection.execute(
            select(func.count(), func.sum(chunks.c.token_count)).where(WAITING, chunks.c.model == model)
        ).one()
    return Backlog(int(waiting), int(tokens or 0))
