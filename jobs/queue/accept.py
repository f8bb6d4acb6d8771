"""Taking a job in: one short transaction, and from its commit on the job survives everything but the database."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, bindparam, delete, exists, insert, or_, select
from sqlalchemy.sql.dml import ReturningInsert

from jobs.queue.ending import end_jobs
from jobs.queue.fair_shares import open_lane
from jobs.store.codec import pack_ids, pack_options
from jobs.store.database import Database
from jobs.store.identifiers import new_job_id
from jobs.store.records import Accepted, Idempotency, JobStatus, Origin, Submission
from jobs.store.tables import ChunkState, chunk_inputs, chunks, idempotency_keys, jobs, prefixes
from jobs.tenancy.ownership import visible
from jobs.tenancy.quotas import charge, check_room, within_quota
from jobs.webhooks.outbox import pack_webhook
from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import Rows
from scoring.options import Priority
from scoring.work import rows_work
from settings.jobs import StoreSettings

UNKNOWN_BODY = ""
"""The hash that stands by the key of an upload for as long as its body has not come to an end."""
IN_PROGRESS_RETRY_SECONDS = 5.0
SHARED = "*"
"""Whose a prefix is that all tenants share; no tenant is called so."""


def accept(db: Database, submission: Submission) -> Accepted:
    """Store a job with its work, visible to workers at once. A job without items has succeeded with that.

    Raises RequestError IDEMPOTENCY_KEY_REUSED, QUOTA_EXCEEDED, REQUEST_TOO_LARGE.
    """
    if submission.quota is None or not submission.chunks:
        return _accept(db, submission)
    return within_quota(db, submission.tenant, lambda: _accept(db, submission))


def _accept(db: Database, submission: Submission) -> Accepted:
    job_id = new_job_id()
    # A call's client has been promised nothing yet: its job need not be on disk before the work starts.
    with db.write(durable=submission.origin is Origin.JOB) as connection:
        if submission.idempotency is not None:
            earlier = take_key(connection, db, submission.tenant, submission.idempotency, job_id)
            if earlier is not None:
                return Accepted(earlier.job_id, replayed=True)
        if submission.quota is not None and submission.chunks:
            check_room(connection, submission.tenant, submission.quota)
        prefix_id, now = store_prefix(connection, db, submission)
        row = job_row(submission, job_id, prefix_id, now)
        connection.execute(insert(jobs), row)
        if submission.chunks:
            due = due_at(db.settings, submission.priority, now, row["expires_at"])
            store_chunks(connection, submission, submission.chunks, job_id, prefix_id, due, ChunkState.WAITING)
            interactive = submission.priority is Priority.INTERACTIVE
            open_lane(connection, db, submission.model, submission.tenant, interactive=interactive)
            charge_quota(connection, submission, submission.chunks)
        else:
            end_jobs(connection, db, [job_id], JobStatus.SUCCEEDED)
    return Accepted(job_id, replayed=False)


def charge_quota(connection: Connection, submission: Submission, parts: Sequence[tuple[int, Rows]]) -> None:
    """Count chunks against the tenant's quota, if it has one. To be called last. Raises as :func:`charge` does."""
    if submission.quota is not None:
        tokens = sum(rows_work(rows) for _, rows in parts)
        charge(connection, submission.tenant, submission.quota, tokens)


def slack_seconds(settings: StoreSettings, priority: Priority) -> float:
    """What is added to a job's accept time to order it among the others: computed once, so waiting work ages."""
    return {
        Priority.INTERACTIVE: settings.slack_interactive_seconds,
        Priority.NORMAL: settings.slack_normal_seconds,
        Priority.BULK: settings.slack_bulk_seconds,
    }[priority]


def due_at(settings: StoreSettings, priority: Priority, accepted_at: float, expires_at: float | None) -> float:
    """When a job's chunks are due: what orders them among all others."""
    due = accepted_at + slack_seconds(settings, priority)
    return due if expires_at is None else min(due, expires_at)


def is_known(db: Database, tenant: str, idempotency: Idempotency) -> bool:
    """Whether a job was accepted with this Idempotency-Key, whatever its body. Raises StorageUnavailable."""
    known = exists().where(
        idempotency_keys.c.tenant == tenant,
        idempotency_keys.c.key == idempotency.key,
        idempotency_keys.c.expires_at > db.now,
    )
    with db.read() as connection:
        return bool(connection.scalar(select(known)))


def take_key(
    connection: Connection, db: Database, tenant: str, idempotency: Idempotency, job_id: str
) -> Row[Any] | None:
    """Take the key for a job about to be stored, or return the row of the job that has it.

    Of two requests with one key the second waits here until the first has committed or failed.
    Raises RequestError IDEMPOTENCY_KEY_REUSED, IDEMPOTENCY_IN_PROGRESS.
    """
    same_key = and_(idempotency_keys.c.tenant == tenant, idempotency_keys.c.key == idempotency.key)
    # An upload that came to nothing leaves its key free, too.
    failed = and_(idempotency_keys.c.body_hash == UNKNOWN_BODY, jobs.c.finished_at.is_not(None))
    gone = select(jobs.c.id).where(jobs.c.id == idempotency_keys.c.job_id, or_(~visible(db), failed)).exists()
    connection.execute(delete(idempotency_keys).where(same_key, or_(idempotency_keys.c.expires_at <= db.now, gone)))
    take = (
        db.insert(idempotency_keys)
        .values(
            tenant=tenant,
            key=idempotency.key,
            body_hash=idempotency.body_hash,
            job_id=job_id,
            expires_at=db.now + db.settings.idempotency_seconds,
        )
        .on_conflict_do_nothing()
        .returning(idempotency_keys.c.job_id)
    )
    earlier: Row[Any] | None = None
    while earlier is None:  # taken, or found, or removed with its job just now and taken the next time
        if connection.scalar(take) is not None:
            return None
        earlier = connection.execute(select(idempotency_keys).where(same_key)).one_or_none()
    if earlier.body_hash == UNKNOWN_BODY:
        raise RequestError(
            ErrorCode.IDEMPOTENCY_IN_PROGRESS,
            f"the first request with the Idempotency-Key {idempotency.key!r} is still being received",
            retry_after=IN_PROGRESS_RETRY_SECONDS,
        )
    if idempotency.body_hash != UNKNOWN_BODY and earlier.body_hash != idempotency.body_hash:
        raise key_reused(idempotency.key)
    return earlier


def key_reused(key: str) -> RequestError:
    """The error for a key that was used for another body."""
    message = f"the Idempotency-Key {key!r} was used for another request: take a new one"
    return RequestError(ErrorCode.IDEMPOTENCY_KEY_REUSED, message)


def store_prefix(connection: Connection, db: Database, submission: Submission) -> tuple[int, float]:
    """The id of the prefix's row, made if need be, and the time. The row stays until the transaction ends."""
    tokens = pack_ids(submission.prefix)
    identity = {
        "tenant": SHARED if db.settings.share_prefixes else submission.tenant,
        "tokenizer_fingerprint": submission.tokenizer_fingerprint,
        "sha256": sha256(tokens).hexdigest(),
    }
    row: Row[Any] | None = None
    while row is None:  # found, or made, or made by another just now and found the next time
        row = connection.execute(db.built(_hold_prefix), identity).one_or_none()
        row = row or connection.execute(db.built(_make_prefix), identity | {"tokens": tokens}).one_or_none()
    return row.id, row.now


def _hold_prefix(db: Database) -> Select[Any]:
    same = (column == bindparam(column.name) for column in prefixes.c["tenant", "tokenizer_fingerprint", "sha256"])
    return select(prefixes.c.id, db.now.label("now")).where(*same).with_for_update(read=True, key_share=True)


def _make_prefix(db: Database) -> ReturningInsert[Any]:
    return db.insert(prefixes).on_conflict_do_nothing().returning(prefixes.c.id, db.now.label("now"))


def job_row(submission: Submission, job_id: str, prefix_id: int, now: float) -> dict[str, Any]:
    """A job that waits for all of its chunks, accepted now."""
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
    connection: Connection,
    submission: Submission,
    parts: Sequence[tuple[int, Rows]],
    job_id: str,
    prefix_id: int,
    due_at: float,
    state: ChunkState,
) -> None:
    """Store chunks of a job. parts: at least one, as of :class:`Submission`."""
    shared_ids = (int(submission.prefix.max(initial=0)), *submission.label_token_ids)
    stored = connection.execute(
        insert(chunks).returning(chunks.c.id, chunks.c.first_item),
        [
            {
                "job_id": job_id,
                "tenant": submission.tenant,
                "model": submission.model,
                "prefix_id": prefix_id,
                "due_at": due_at,
                "state": state.value,
                "first_item": first_item,
                "item_count": len(rows),
                "token_count": rows_work(rows),
                "failures": 0,
                "tokenizer_fingerprint": submission.tokenizer_fingerprint,
                "longest_sequence": int(rows.sequence_lengths.max(initial=0)),
                "highest_token": max(int(rows.tokens.max(initial=0)), *shared_ids),
                "interactive": submission.priority is Priority.INTERACTIVE,
            }
            for first_item, rows in parts
        ],
    )
    ids = {row.first_item: row.id for row in stored}
    connection.execute(
        insert(chunk_inputs),
        [{"chunk_id": ids[first_item], "rows": rows.to_bytes()} for first_item, rows in parts],
    )
