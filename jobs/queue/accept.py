"""Accepting jobs, each in one short transaction. Once it is committed, only losing the database loses the job."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from sqlalchemy import Row, and_, bindparam, delete, exists, insert, or_, select

from jobs.queue.ending import end_jobs
from jobs.queue.fair_shares import open_flow
from jobs.store.clock import NOW
from jobs.store.codec import pack_ids, pack_options
from jobs.store.database import Database, Transaction
from jobs.store.identifiers import new_job_id
from jobs.store.records import Accepted, Idempotency, JobStatus, Origin, Submission
from jobs.store.tables import ChunkState, Seconds, chunk_inputs, chunks, idempotency_keys, jobs, prefixes
from jobs.store.upsert import get_or_create, insert_if_new
from jobs.tenancy.ownership import VISIBLE
from jobs.tenancy.quotas import charge, check_room, within_quota
from jobs.webhooks.outbox import pack_webhook
from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import Chunk
from scoring.options import Priority
from scoring.quoting import quote
from scoring.work import work_of_prefix, work_of_rows
from settings.jobs import StoreSettings

UNKNOWN_BODY = ""  # stored as the body hash with the Idempotency-Key of an upload that is still being received
IN_PROGRESS_RETRY_SECONDS = 5.0
SHARED = "*"  # the tenant name that owns prefixes shared by all tenants; no real tenant can have it


def accept(db: Database, submission: Submission) -> Accepted:
    """Store a job with its work; workers can claim it at once. A job without items succeeds immediately.

    Raises RequestError IDEMPOTENCY_KEY_REUSED, QUOTA_EXCEEDED, REQUEST_TOO_LARGE.
    """
    if submission.quota is None or not submission.chunks:
        return _accept(db, submission)
    return within_quota(db, submission.tenant, lambda: _accept(db, submission))


def _accept(db: Database, submission: Submission) -> Accepted:
    job_id = new_job_id()
    # The client of a call has been promised nothing yet, so the work can start before its job is on disk.
    with db.write(durable=submission.origin is Origin.JOB) as tx:
        if submission.idempotency is not None:
            earlier = take_key(tx, submission.tenant, submission.idempotency, job_id)
            if earlier is not None:
                return Accepted(earlier.job_id, replayed=True)
        if submission.quota is not None and submission.chunks:
            check_room(tx, submission.tenant, submission.quota)
        prefix_id, now = store_prefix(tx, submission)
        row = job_row(submission, job_id, prefix_id, now)
        tx.execute(insert(jobs), row)
        if submission.chunks:
            due = due_at(db.settings, submission.priority, now, row["expires_at"])
            tokens = store_chunks(tx, submission, submission.chunks, job_id, prefix_id, due, ChunkState.WAITING)
            interactive = submission.priority is Priority.INTERACTIVE
            open_flow(tx, submission.model, submission.tenant, interactive=interactive)
            if submission.quota is not None:
                charge(tx, submission.tenant, submission.quota, tokens + work_of_prefix(len(submission.prefix)))
        else:
            end_jobs(tx, [job_id], JobStatus.SUCCEEDED)
    return Accepted(job_id, replayed=False)


def slack_seconds(settings: StoreSettings, priority: Priority) -> float:
    """Return the seconds from a job's acceptance to its due time. It never changes, so waiting work ages."""
    return {
        Priority.INTERACTIVE: settings.slack_interactive_seconds,
        Priority.NORMAL: settings.slack_normal_seconds,
        Priority.BULK: settings.slack_bulk_seconds,
    }[priority]


def due_at(settings: StoreSettings, priority: Priority, accepted_at: float, expires_at: float | None) -> float:
    """Return the due time of a job's chunks, which orders them among all chunks: Unix seconds."""
    due = accepted_at + slack_seconds(settings, priority)
    return due if expires_at is None else min(due, expires_at)


def is_known(db: Database, tenant: str, idempotency: Idempotency) -> bool:
    """Return whether a job was accepted with this Idempotency-Key, whatever its body. Raises StorageUnavailable."""
    known = exists().where(
        idempotency_keys.c.tenant == tenant,
        idempotency_keys.c.key == idempotency.key,
        idempotency_keys.c.expires_at > NOW,
    )
    with db.read() as tx:
        return bool(tx.scalar(select(known)))


def take_key(tx: Transaction, tenant: str, idempotency: Idempotency, job_id: str) -> Row[Any] | None:
    """Reserve the key for a job that is about to be stored, or return the row of the key if another job has it.

    If two requests have the same key, the second waits here until the first is committed or has failed.
    Raises RequestError IDEMPOTENCY_KEY_REUSED, IDEMPOTENCY_IN_PROGRESS.
    """
    same_key = and_(idempotency_keys.c.tenant == tenant, idempotency_keys.c.key == idempotency.key)
    # The key of an upload that failed is free again.
    failed = and_(idempotency_keys.c.body_hash == UNKNOWN_BODY, jobs.c.finished_at.is_not(None))
    gone = select(jobs.c.id).where(jobs.c.id == idempotency_keys.c.job_id, or_(~VISIBLE, failed)).exists()
    tx.execute(delete(idempotency_keys).where(same_key, or_(idempotency_keys.c.expires_at <= NOW, gone)))
    values = {
        "tenant": tenant,
        "key": idempotency.key,
        "body_hash": idempotency.body_hash,
        "job_id": job_id,
        "valid_seconds": tx.settings.idempotency_seconds,
    }
    earlier = get_or_create(tx, _FIND_KEY, _CREATE_KEY, values, likely_exists=False)
    if earlier.job_id == job_id:
        return None
    if earlier.body_hash == UNKNOWN_BODY:
        raise RequestError(
            ErrorCode.IDEMPOTENCY_IN_PROGRESS,
            f"the first request with the Idempotency-Key {quote(idempotency.key)} is still being received",
            retry_after=IN_PROGRESS_RETRY_SECONDS,
        )
    if idempotency.body_hash != UNKNOWN_BODY and earlier.body_hash != idempotency.body_hash:
        raise key_reused(idempotency.key)
    return earlier


_FIND_KEY = select(idempotency_keys).where(
    *(column == bindparam(column.name) for column in idempotency_keys.primary_key)
)
_CREATE_KEY = (
    insert_if_new(idempotency_keys)
    .values(expires_at=NOW + bindparam("valid_seconds", type_=Seconds))
    .returning(*idempotency_keys.c)
)


def key_reused(key: str) -> RequestError:
    """Return the error for a key that was used with a different body."""
    message = f"the Idempotency-Key {quote(key)} was used for another request: take a new one"
    return RequestError(ErrorCode.IDEMPOTENCY_KEY_REUSED, message)


def store_prefix(tx: Transaction, submission: Submission) -> tuple[int, float]:
    """Store the prefix if it is new. Return its id and the time. Nobody can remove it before the transaction ends."""
    tokens = pack_ids(submission.prefix)
    values = {
        "tenant": SHARED if tx.settings.share_prefixes else submission.tenant,
        "tokenizer_fingerprint": submission.tokenizer_fingerprint,
        "sha256": sha256(tokens).hexdigest(),
        "tokens": tokens,
    }
    row = get_or_create(tx, _FIND_PREFIX, _CREATE_PREFIX, values)
    return row.id, row.now


_FIND_PREFIX = (
    select(prefixes.c.id, NOW.label("now"))
    .where(*(column == bindparam(column.name) for column in prefixes.c["tenant", "tokenizer_fingerprint", "sha256"]))
    .with_for_update(read=True, key_share=True)
)
_CREATE_PREFIX = insert_if_new(prefixes).returning(prefixes.c.id, NOW.label("now"))


def job_row(submission: Submission, job_id: str, prefix_id: int, now: float) -> dict[str, Any]:
    """Return the row of a job that is accepted now, with all of its chunks unfinished."""
    return {
        "id": job_id,
        "tenant": submission.tenant,
        "model": submission.model,
        "origin": submission.origin.value,
        "priority": submission.priority.value,
        "status": JobStatus.QUEUED.value,
        "prefix_id": prefix_id,
        "total_items": submission.total_items,
        "scored_items": 0,
        "remaining_chunks": len(submission.chunks),
        "prompt_tokens": submission.prompt_tokens,
        "cached_tokens": 0,
        "created_at": now,
        "expires_at": None if submission.expires_in is None else now + submission.expires_in,
        "label_token_ids": pack_ids(submission.label_token_ids),
        "options": pack_options(submission.options),
        "metadata": dict(submission.metadata),
        "warnings": list(submission.warnings),
        "webhook": pack_webhook(submission.webhook),
    }


def store_chunks(
    tx: Transaction,
    submission: Submission,
    new_chunks: Sequence[Chunk],
    job_id: str,
    prefix_id: int,
    due_at: float,
    state: ChunkState,
) -> int:
    """Store chunks of a job, at least one. Return their work in tokens, without the prefix."""
    tokens = [work_of_rows(chunk.rows) for chunk in new_chunks]
    shared_ids = (int(submission.prefix.max(initial=0)), *submission.label_token_ids)
    stored = tx.execute(
        insert(chunks).returning(chunks.c.id, chunks.c.first_item),
        [
            {
                "job_id": job_id,
                "tenant": submission.tenant,
                "model": submission.model,
                "prefix_id": prefix_id,
                "due_at": due_at,
                "state": state.value,
                "first_item": chunk.first_item,
                "item_count": len(chunk.rows),
                "token_count": token_count,
                "failures": 0,
                "tokenizer_fingerprint": submission.tokenizer_fingerprint,
                "longest_sequence": int(chunk.rows.sequence_lengths.max(initial=0)),
                "highest_token": max(int(chunk.rows.tokens.max(initial=0)), *shared_ids),
                "interactive": submission.priority is Priority.INTERACTIVE,
            }
            for chunk, token_count in zip(new_chunks, tokens, strict=True)
        ],
    )
    ids = {row.first_item: row.id for row in stored}
    tx.execute(
        insert(chunk_inputs),
        [{"chunk_id": ids[chunk.first_item], "rows": chunk.rows.to_bytes()} for chunk in new_chunks],
    )
    return sum(tokens)
