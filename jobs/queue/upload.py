"""Taking in a job that is too large for one transaction: staged piece by piece, and accepted with the last of them.

While it is ``receiving``, its chunks are staged: no claim sees them. Its counters grow with every piece, in the piece's
own transaction, so they are final before anybody can score anything of it. :func:`accept_upload` makes it a job like
any other, and then its chunks are let go, a bounded number in each transaction: the job is accepted by then, and
whichever process sweeps goes on with it should this one die. A receiver that falls silent is given up by the sweep.

Who changes such a job locks its row first, and looks at its status: a job that was cancelled, deleted, expired or swept
meanwhile takes nothing more in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select, update

from jobs.queue.accept import UNKNOWN_BODY, charge_quota, due_at, job_row, store_chunks, store_prefix, take_key
from jobs.queue.ending import end_jobs, locking
from jobs.queue.fair_shares import open_lane
from jobs.queue.removal import remove_jobs
from jobs.store.database import Database
from jobs.store.identifiers import new_job_id
from jobs.store.records import Idempotency, JobStatus, Submission, Swept
from jobs.store.tables import ChunkState, chunks, idempotency_keys, jobs
from jobs.tenancy.ownership import missing_job, visible
from jobs.tenancy.quotas import check_size, within_quota
from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import Rows
from scoring.options import Priority
from scoring.work import rows_work

CHUNKS_PER_STEP = 1_000
UPLOADS_PER_SWEEP = 100


@dataclass(frozen=True, slots=True, eq=False)
class Upload:
    """A job that is being received. submission: all of it but its items."""

    job_id: str
    prefix_id: int
    submission: Submission


@dataclass(frozen=True, slots=True)
class EarlierUpload:
    """The job that an earlier request with the same Idempotency-Key has made, and the hash of that request's body."""

    job_id: str
    body_hash: str


def begin_upload(db: Database, submission: Submission, key: str | None) -> Upload | EarlierUpload:
    """Store a job that has no items yet, and take its Idempotency-Key before anything of its body is known.

    Raises RequestError IDEMPOTENCY_IN_PROGRESS.
    """
    job_id = new_job_id()
    with db.write() as connection:
        if key is not None:
            idempotency = Idempotency(key, UNKNOWN_BODY)
            earlier = take_key(connection, db, submission.tenant, idempotency, job_id)
            if earlier is not None:
                return EarlierUpload(earlier.job_id, earlier.body_hash)
        prefix_id, now = store_prefix(connection, db, submission)
        row = job_row(submission, job_id, prefix_id, now)
        connection.execute(insert(jobs), row | {"status": JobStatus.RECEIVING.value, "received_at": now})
    return Upload(job_id, prefix_id, submission)


def stage(db: Database, upload: Upload, parts: Sequence[tuple[int, Rows]] = ()) -> None:
    """Store further chunks of an upload, as of :class:`Submission`; without any, say that its receiver is alive.

    Durable, like all that is accepted: a database that lost a piece would not lose the pieces after it.
    Raises RequestError JOB_CANCELLED, JOB_FAILED, JOB_NOT_FOUND where the job has come to an end meanwhile,
    QUOTA_EXCEEDED, REQUEST_TOO_LARGE.
    """
    quota = upload.submission.quota
    if quota is None or not parts:
        _stage(db, upload, parts)
        return
    try:
        within_quota(db, upload.submission.tenant, lambda: _stage(db, upload, parts))
    except RequestError as error:
        if error.code is ErrorCode.QUOTA_EXCEEDED:
            # Where it fills the quota all by itself, no waiting would help.
            check_size(quota, _staged_tokens(db, upload) + sum(rows_work(rows) for _, rows in parts))
        raise


def _stage(db: Database, upload: Upload, parts: Sequence[tuple[int, Rows]]) -> None:
    with db.write() as connection:
        found = connection.scalar(
            update(jobs)
            .where(jobs.c.id == upload.job_id, jobs.c.status == JobStatus.RECEIVING.value)
            .values(
                received_at=db.now,
                total_items=jobs.c.total_items + sum(len(rows) for _, rows in parts),
                remaining_chunks=jobs.c.remaining_chunks + len(parts),
                prompt_tokens=jobs.c.prompt_tokens + sum(int(rows.sequence_lengths.sum()) for _, rows in parts),
            )
            .returning(jobs.c.created_at)
        )
        if found is None:
            raise _ended(connection, db, upload.job_id)
        if parts:
            # Due when it began to come, until it is known when it has come.
            store_chunks(
                connection, upload.submission, parts, upload.job_id, upload.prefix_id, found, ChunkState.STAGED
            )
            charge_quota(connection, upload.submission, parts)


def _staged_tokens(db: Database, upload: Upload) -> int:
    with db.read() as connection:
        return int(
            connection.scalar(select(func.sum(chunks.c.token_count)).where(chunks.c.job_id == upload.job_id)) or 0
        )


def accept_upload(db: Database, upload: Upload, body_hash: str) -> None:
    """Accept a job of which everything is staged, and let its chunks go. One without items has succeeded with that.

    Raises RequestError as :func:`stage` does.
    """
    with db.write() as connection:
        now = connection.execute(select(db.now)).scalar_one()
        remaining = connection.scalar(
            update(jobs)
            .where(jobs.c.id == upload.job_id, jobs.c.status == JobStatus.RECEIVING.value)
            .values(status=JobStatus.QUEUED.value, received_at=now)
            .returning(jobs.c.remaining_chunks)
        )
        if remaining is None:
            raise _ended(connection, db, upload.job_id)
        connection.execute(
            update(idempotency_keys)
            .where(idempotency_keys.c.job_id == upload.job_id)
            .values(body_hash=body_hash, expires_at=now + db.settings.idempotency_seconds)
        )
        if remaining == 0:
            end_jobs(connection, db, [upload.job_id], JobStatus.SUCCEEDED)
    let_go(db, upload.job_id)


def let_go(db: Database, job_id: str) -> None:
    """Make the staged chunks of an accepted job wait. Whoever else does the same at the same time does no harm."""
    after: int | None = -1
    while after is not None:
        after = _let_go_further(db, job_id, after)


def give_up(db: Database, job_id: str, *, silent_seconds: float | None = None) -> bool:
    """End a job that is still being received, as if it had never come: nothing was promised. False if it is not, or,
    where ``silent_seconds`` are given, if its receiver was alive since then.

    Gone for every reader at once, its key free; its rows follow, here or by the sweep.
    """
    with db.write() as connection:
        connection.execute(locking([job_id]))
        which = [jobs.c.id == job_id, jobs.c.status == JobStatus.RECEIVING.value]
        if silent_seconds is not None:
            which.append(jobs.c.received_at <= db.now - silent_seconds)
        if connection.scalar(select(jobs.c.id).where(*which)) is None:
            return False
        end_jobs(connection, db, [job_id], JobStatus.CANCELLED, silently=True)
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(remove_at=0.0))
        return True


def remove_upload(db: Database, job_id: str) -> None:
    """:func:`give_up`, and take its rows away too."""
    if give_up(db, job_id):
        while remove_jobs(db, jobs.c.id == job_id).found:
            pass


def sweep_uploads(db: Database) -> Swept:
    """Give up uploads whose receiver fell silent before all had come, and let go what it left behind if all had."""
    silent_seconds = db.settings.upload_timeout_seconds
    with db.read() as connection:
        silent = connection.execute(
            select(jobs.c.id, jobs.c.status, jobs.c.model)
            .where(jobs.c.received_at <= db.now - silent_seconds)
            .order_by(jobs.c.received_at)
            .limit(UPLOADS_PER_SWEEP)
        ).all()
    receiving = [row.id for row in silent if row.status == JobStatus.RECEIVING.value]
    accepted = [row for row in silent if row.id not in receiving]
    ended = [job_id for job_id in receiving if give_up(db, job_id, silent_seconds=silent_seconds)]
    for row in accepted:
        let_go(db, row.id)
    return Swept(tuple(ended), frozenset(row.model for row in accepted), 0)


def _let_go_further(db: Database, job_id: str, after: int) -> int | None:
    """One step: chunks behind the item ``after``, so many at most. Returns what the next one comes after, or None."""
    with db.write() as connection:
        connection.execute(locking([job_id]))
        job = connection.execute(
            select(jobs).where(
                jobs.c.id == job_id, jobs.c.status != JobStatus.RECEIVING.value, jobs.c.received_at.is_not(None)
            )
        ).one_or_none()
        if job is None:
            return None
        staged = connection.execute(
            select(chunks.c.id, chunks.c.first_item)
            .where(chunks.c.job_id == job_id, chunks.c.first_item > after, chunks.c.state == ChunkState.STAGED.value)
            .order_by(chunks.c.first_item)
            .limit(CHUNKS_PER_STEP)
        ).all()
        # From when all of it had come, so that every step, whoever does it, says the same.
        priority = Priority(job.priority)
        due = due_at(db.settings, priority, job.received_at, job.expires_at)
        connection.execute(
            update(chunks)
            .where(chunks.c.id.in_([row.id for row in staged]))
            .values(state=ChunkState.WAITING.value, due_at=due)
        )
        going_on = len(staged) == CHUNKS_PER_STEP
        if not going_on:
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(received_at=None))
        if staged:
            open_lane(connection, db, job.model, job.tenant, interactive=priority is Priority.INTERACTIVE)
        return int(staged[-1].first_item) if going_on else None


def _ended(connection: Connection, db: Database, job_id: str) -> RequestError:
    """Why a job takes nothing more in."""
    status = connection.scalar(select(jobs.c.status).where(jobs.c.id == job_id, visible(db)))
    if status is None:
        return missing_job()
    if status == JobStatus.CANCELLED.value:
        return RequestError(ErrorCode.JOB_CANCELLED, f"{job_id} was cancelled while it was being received")
    return RequestError(ErrorCode.JOB_FAILED, f"{job_id} has {status} while it was being received")
