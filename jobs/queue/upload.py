"""Accepting a job that is too large for one transaction: it is staged in parts, and accepted with the last of them.

While the job is ``receiving``, its chunks are staged, and no claim sees them. Each part is stored in a transaction that
also adds it to the counters of the job, so the counters are final before any chunk can be scored. :func:`accept_upload`
makes it a job like any other. After that its chunks are released, a bounded number per transaction. If the process dies
before it has released all of them, a sweep of any process continues. The sweep also aborts an upload whose receiver is
silent.

Every transaction that changes such a job locks its row first and checks its status. A job that was cancelled, deleted,
expired or swept in the meantime accepts no further part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, insert, select, update

from jobs.queue.ending import end_jobs, lock_jobs
from jobs.queue.fair_shares import Flow, open_flows
from jobs.queue.idempotency import UNKNOWN_BODY, WantedKey, set_body_hash, take_key
from jobs.queue.new_jobs import chunks_to_store, due_at, job_row, store_chunks, store_prefixes
from jobs.queue.removal import remove_jobs
from jobs.queue.reuse import with_kept
from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.identifiers import new_job_id
from jobs.store.records import JobStatus, Submission, Swept
from jobs.store.tables import STAGED, ChunkState, chunks, idempotency_keys, jobs
from jobs.tenancy.ownership import VISIBLE, job_not_found
from jobs.tenancy.quotas import charge, check_size, within_quota
from scoring.chunk import Chunk
from scoring.error_codes import ErrorCode, RequestError
from scoring.options import Priority
from scoring.work import work_of_group, work_of_prefix

CHUNKS_PER_STEP = 1_000  # chunks that are released in one transaction
UPLOADS_PER_SWEEP = 100


@dataclass(frozen=True, slots=True, eq=False)
class Upload:
    """A job that is being received."""

    job_id: str
    prefix_id: int
    submission: Submission  # the job without its items


@dataclass(frozen=True, slots=True)
class EarlierUpload:
    """A job that an earlier request with the same Idempotency-Key created."""

    job_id: str
    body_hash: str  # of the earlier request


def begin_upload(db: Database, submission: Submission, key: str | None) -> Upload | EarlierUpload:
    """Store a job that has no items yet, and reserve its Idempotency-Key before its body is known.

    Raises RequestError IDEMPOTENCY_IN_PROGRESS.
    """
    job_id = new_job_id()
    with db.write() as tx:
        if key is not None:
            earlier = take_key(tx, WantedKey(submission.tenant, key, UNKNOWN_BODY, job_id))
            if earlier is not None:
                return EarlierUpload(earlier.job_id, earlier.body_hash)
        [prefix_id], now = store_prefixes(tx, [submission])
        row = job_row(submission, job_id, prefix_id, now)
        tx.execute(insert(jobs), row | {"status": JobStatus.RECEIVING.value, "received_at": now})
    return Upload(job_id, prefix_id, submission)


def stage(db: Database, upload: Upload, new_chunks: Sequence[Chunk] = ()) -> None:
    """Store further chunks of an upload. Without chunks, only record that its receiver is alive.

    The commit is durable: if a crash could undo it, later parts could be stored while this one is missing.
    Raises RequestError JOB_CANCELLED, JOB_FAILED or JOB_NOT_FOUND if the job has ended in the meantime, and
    QUOTA_EXCEEDED, REQUEST_TOO_LARGE.
    """
    quota = upload.submission.quota
    [new_chunks] = with_kept(db, [(upload.submission, new_chunks)])
    if quota is None or not new_chunks:
        _stage(db, upload, new_chunks)
        return
    try:
        within_quota(db, upload.submission.tenant, lambda: _stage(db, upload, new_chunks))
    except RequestError as error:
        if error.code is ErrorCode.QUOTA_EXCEEDED:
            # If the upload alone exceeds the quota, waiting would not help.
            new_tokens = work_of_group(len(upload.submission.prefix), new_chunks)
            check_size(quota, _staged_tokens(db, upload) + new_tokens)
        raise


def _stage(db: Database, upload: Upload, new_chunks: Sequence[Chunk]) -> None:
    known = [chunk for chunk in new_chunks if chunk.is_known]
    waiting = len(new_chunks) - len(known)
    with db.write() as tx:
        job = tx.execute(
            update(jobs)
            .where(jobs.c.id == upload.job_id, jobs.c.status == JobStatus.RECEIVING.value)
            .values(
                received_at=NOW,
                total_items=jobs.c.total_items + sum(len(chunk.rows) for chunk in new_chunks),
                scored_items=jobs.c.scored_items + sum(len(chunk.rows) for chunk in known),
                reused_items=jobs.c.reused_items + sum(chunk.reused for chunk in new_chunks),
                remaining_chunks=jobs.c.remaining_chunks + waiting,
                prompt_tokens=jobs.c.prompt_tokens + sum(chunk.prompt_tokens for chunk in new_chunks),
                cached_tokens=jobs.c.cached_tokens + sum(chunk.prompt_tokens for chunk in known),
                stored_bytes=jobs.c.stored_bytes + upload.submission.bytes_of(new_chunks),
            )
            .returning(jobs.c.created_at, jobs.c.remaining_chunks)
        ).one_or_none()
        if job is None:
            raise _ended(tx, upload.job_id)
        if new_chunks:
            # The final due time is set when the chunks are released.
            submission = upload.submission
            stored = chunks_to_store(
                submission, new_chunks, upload.job_id, upload.prefix_id, job.created_at, ChunkState.STAGED
            )
            store_chunks(tx, stored)
            if submission.quota is not None and waiting:
                # The first part with something to compute pays for the query.
                is_first = job.remaining_chunks == waiting
                tokens = sum(chunk.row["token_count"] for chunk in stored)
                tokens += work_of_prefix(len(submission.prefix)) if is_first else 0
                check_size(submission.quota, tokens)
                charge(tx, submission.tenant, submission.quota, tokens)


def _staged_tokens(db: Database, upload: Upload) -> int:
    """Return the work of what is staged, without the query."""
    with db.read(slow=True) as tx:
        return int(tx.scalar(select(func.sum(chunks.c.token_count)).where(chunks.c.job_id == upload.job_id)) or 0)


def accept_upload(db: Database, upload: Upload, body_hash: str) -> None:
    """Accept a job whose chunks are all staged, and release them. A job without items succeeds immediately.

    Raises RequestError as :func:`stage` does.
    """
    with db.write() as tx:
        remaining = tx.scalar(
            update(jobs)
            .where(jobs.c.id == upload.job_id, jobs.c.status == JobStatus.RECEIVING.value)
            .values(status=JobStatus.QUEUED.value, received_at=NOW)
            .returning(jobs.c.remaining_chunks)
        )
        if remaining is None:
            raise _ended(tx, upload.job_id)
        set_body_hash(tx, idempotency_keys.c.job_id, upload.job_id, body_hash)
        if remaining == 0:
            end_jobs(tx, [upload.job_id], JobStatus.SUCCEEDED)
    release_chunks(db, upload.job_id)


def release_chunks(db: Database, job_id: str) -> None:
    """Release the staged chunks of an accepted job: they wait from then on. Several processes may do this at once."""
    after: int | None = -1
    while after is not None:
        after = _release_step(db, job_id, after)


def abort_upload(db: Database, job_id: str, *, silent_seconds: float | None = None) -> bool:
    """End a job that is still being received. Nothing was promised, so no reader sees it any more and its key is free.

    Its rows are removed later, by :func:`remove_upload` or by a sweep. silent_seconds: only if its receiver has been
    silent for so long. Returns False if the job was not ended.
    """
    with db.write(slow=True) as tx:
        tx.execute(lock_jobs([job_id]))
        which = [jobs.c.id == job_id, jobs.c.status == JobStatus.RECEIVING.value]
        if silent_seconds is not None:
            which.append(jobs.c.received_at <= NOW - silent_seconds)
        if tx.scalar(select(jobs.c.id).where(*which)) is None:
            return False
        end_jobs(tx, [job_id], JobStatus.CANCELLED, silently=True)
        tx.execute(update(jobs).where(jobs.c.id == job_id).values(remove_at=NOW))
        return True


def remove_upload(db: Database, job_id: str) -> None:
    """Abort an upload, and remove its rows."""
    if abort_upload(db, job_id):
        while remove_jobs(db, jobs.c.id == job_id).found:
            pass


def sweep_uploads(db: Database) -> Swept:
    """Abort uploads whose receiver fell silent, and release the staged chunks of accepted jobs that it left behind."""
    silent_seconds = db.settings.upload_timeout_seconds
    with db.read() as tx:
        silent = tx.execute(
            select(jobs.c.id, jobs.c.status, jobs.c.model)
            .where(jobs.c.received_at <= NOW - silent_seconds)
            .order_by(jobs.c.received_at)
            .limit(UPLOADS_PER_SWEEP)
        ).all()
    receiving = [row.id for row in silent if row.status == JobStatus.RECEIVING.value]
    accepted = [row for row in silent if row.id not in receiving]
    ended = [job_id for job_id in receiving if abort_upload(db, job_id, silent_seconds=silent_seconds)]
    for row in accepted:
        release_chunks(db, row.id)
    return Swept(tuple(ended), frozenset(row.model for row in accepted), 0)


def _release_step(db: Database, job_id: str, after: int) -> int | None:
    """Release some chunks of the items after ``after``. Return where the next step begins; None if all are released."""
    with db.write() as tx:
        tx.execute(lock_jobs([job_id]))
        job = tx.execute(
            select(jobs).where(
                jobs.c.id == job_id, jobs.c.status != JobStatus.RECEIVING.value, jobs.c.received_at.is_not(None)
            )
        ).one_or_none()
        if job is None:
            return None
        staged = tx.execute(
            select(chunks.c.id, chunks.c.first_item)
            .where(chunks.c.job_id == job_id, chunks.c.first_item > after, STAGED)
            .order_by(chunks.c.first_item)
            .limit(CHUNKS_PER_STEP)
        ).all()
        # Counted from when the last part was received, so that all chunks get the same due time.
        priority = Priority(job.priority)
        due = due_at(db.settings, priority, job.received_at, job.expires_at)
        tx.execute(
            update(chunks)
            .where(chunks.c.id.in_([row.id for row in staged]))
            .values(state=ChunkState.WAITING.value, due_at=due)
        )
        more_staged = len(staged) == CHUNKS_PER_STEP
        if not more_staged:
            tx.execute(update(jobs).where(jobs.c.id == job_id).values(received_at=None))
        if staged:
            open_flows(tx, [Flow(job.model, job.tenant, priority is Priority.INTERACTIVE)])
        return int(staged[-1].first_item) if more_staged else None


def _ended(tx: Transaction, job_id: str) -> RequestError:
    """Return the error for a job that accepts no further part."""
    status = tx.scalar(select(jobs.c.status).where(jobs.c.id == job_id, VISIBLE))
    if status is None:
        return job_not_found()
    if status == JobStatus.CANCELLED.value:
        return RequestError(ErrorCode.JOB_CANCELLED, f"{job_id} was cancelled while it was being received")
    return RequestError(ErrorCode.JOB_FAILED, f"{job_id} has {status} while it was being received")
