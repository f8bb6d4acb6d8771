"""Turning lines of a batch into jobs of the queue. The place in the file moves in the transaction that stores them.

So a process that is killed at any moment has stored the jobs of a line and moved the place behind it, or has done
neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from jobs.file_batches.reading import BatchRecord
from jobs.file_batches.tables import BatchStatus, batch_lines, file_batches
from jobs.queue.ending import end_jobs, lock_jobs
from jobs.queue.new_jobs import NewJob
from jobs.queue.reuse import reusing
from jobs.queue.storing import store_jobs
from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.identifiers import new_job_id
from jobs.store.lists import is_one_of
from jobs.store.records import JobStatus, Submission
from jobs.store.tables import COUNTED_BYTES, HAS_ENDED, jobs
from jobs.tenancy.quotas import QuotaFullError, charge_all, have_room, recount

JOBS_PER_STEP = 500  # jobs that one transaction cancels
QUOTA_PAUSE_SECONDS = 1.0
SHORTEST_SECONDS = 0.001  # the least time until the deadline of a job


@dataclass(frozen=True, slots=True, eq=False)
class NewLine:
    """A line that was read. Either it becomes a job, or it is refused."""

    number: int
    stop: int  # the place in the file behind it
    custom_id: str | None
    submission: Submission | None = None
    refusal: bytes | None = None  # what is written to the error file
    ranking: Mapping[str, Any] | None = None  # what its answer needs beside the scores
    answer_bytes: int = 0  # that are written of it, at most

    @property
    def stored_bytes(self) -> int:
        """What the tenant stores more because of it: its answer, and a job with its scores."""
        of_job = 0 if self.submission is None else self.submission.stored_bytes
        return self.answer_bytes + (of_job if of_job >= COUNTED_BYTES else 0)


@dataclass(frozen=True, slots=True)
class Fed:
    """What came of storing lines."""

    submissions: tuple[Submission, ...] = ()  # those that became jobs
    stored_bytes: int = 0  # what the tenant stores more because of them
    pause_seconds: float = 0.0  # until there may be room in the quota of the tenant


def start_batch(db: Database, batch: BatchRecord) -> None:
    """Have the lines of a batch become jobs, whose file can be read."""
    with db.write() as tx:
        tx.execute(
            update(file_batches)
            .where(file_batches.c.id == batch.id, file_batches.c.status == BatchStatus.VALIDATING.value)
            .values(status=BatchStatus.IN_PROGRESS.value, in_progress_at=NOW)
        )


def feed(
    db: Database,
    batch: BatchRecord,
    lines: Sequence[NewLine],
    *,
    read_bytes: int,
    read_lines: int,
    refuse_repeated: Callable[[NewLine], bytes],
    is_late: bool = False,
) -> Fed:
    """Store the next lines of a batch with their jobs, as many as the quota of the tenant has room for.

    read_bytes, read_lines: the place behind all of the lines, and the number of the line there. refuse_repeated:
    returns the refusal of a line whose ``custom_id`` an earlier line has. is_late: the lines are refused because the
    batch has expired.
    """
    jobs_of_lines = reusing(db, [line.submission for line in lines if line.submission is not None])
    found = iter(jobs_of_lines)
    lines = [line if line.submission is None else replace(line, submission=next(found)) for line in lines]
    for _ in range(2):
        try:
            return _feed(db, batch, lines, read_bytes, read_lines, refuse_repeated, is_late=is_late)
        except QuotaFullError:
            seconds = recount(db, batch.tenant)
            if seconds:
                return Fed(pause_seconds=max(seconds, QUOTA_PAUSE_SECONDS))
    return Fed(pause_seconds=QUOTA_PAUSE_SECONDS)


def _feed(
    db: Database,
    batch: BatchRecord,
    lines: Sequence[NewLine],
    read_bytes: int,
    read_lines: int,
    refuse_repeated: Callable[[NewLine], bytes],
    *,
    is_late: bool,
) -> Fed:
    with db.write() as tx:
        now = tx.scalar(
            select(NOW)
            .where(
                file_batches.c.id == batch.id,
                file_batches.c.read_bytes == batch.read_bytes,
                file_batches.c.status == batch.status.value,
            )
            .with_for_update(of=file_batches, key_share=True)
        )
        if now is None:
            return Fed()  # Another process has moved the batch, or it was cancelled.
        fitting = _with_room(tx, batch.tenant, _without_repeated(tx, batch.id, lines, refuse_repeated))
        if len(fitting) < len(lines):
            read_bytes, read_lines = fitting[-1].stop, fitting[-1].number + 1
        left = max(batch.expires_at - now, SHORTEST_SECONDS)
        new: dict[int, NewJob] = {
            line.number: NewJob(new_job_id(), replace(line.submission, expires_in=left))
            for line in fitting
            if line.submission is not None
        }
        if fitting:
            tx.execute(insert(batch_lines), [_row(batch.id, line, new.get(line.number)) for line in fitting])
        if new:
            store_jobs(tx, list(new.values()))
        tx.execute(
            update(file_batches)
            .where(file_batches.c.id == batch.id)
            .values(
                read_bytes=read_bytes,
                read_lines=read_lines,
                reserved_bytes=file_batches.c.reserved_bytes + sum(line.answer_bytes for line in fitting),
                error_message=None,
                is_late=is_late or file_batches.c.is_late,
            )
        )
        submissions = tuple(job.submission for job in new.values())
        charge_all(tx, submissions)
        stored = sum(line.stored_bytes for line in fitting)
        return Fed(submissions, stored)


def say_why_it_waits(db: Database, batch: BatchRecord, reason: str) -> None:
    """Have a batch say why no further lines of it are read. The next lines that are stored take it back."""
    if batch.error_message == reason:
        return
    with db.write(durable=False) as tx:
        tx.execute(
            update(file_batches)
            .where(
                file_batches.c.id == batch.id,
                file_batches.c.read_bytes == batch.read_bytes,
                file_batches.c.status == BatchStatus.IN_PROGRESS.value,
            )
            .values(error_message=reason)
        )


def _row(batch_id: str, line: NewLine, job: NewJob | None) -> dict[str, Any]:
    return {
        "batch_id": batch_id,
        "number": line.number,
        "custom_id": line.custom_id,
        "job_id": None if job is None else job.id,
        "refusal": line.refusal,
        "ranking": None if line.ranking is None else dict(line.ranking),
        "answer_bytes": line.answer_bytes,
    }


def _without_repeated(
    tx: Transaction, batch_id: str, lines: Sequence[NewLine], refuse: Callable[[NewLine], bytes]
) -> list[NewLine]:
    """Return the lines, with those refused whose ``custom_id`` an earlier line of the file has."""
    wanted = [line.custom_id for line in lines if line.custom_id is not None]
    taken = set(tx.scalars(_TAKEN, {"of_batch": batch_id, "custom_ids": wanted})) if wanted else set()
    kept: list[NewLine] = []
    for line in lines:
        if line.custom_id in taken and line.custom_id is not None:
            refusal = line.refusal or refuse(line)
            line = NewLine(line.number, line.stop, None, refusal=refusal, answer_bytes=len(refusal))
        elif line.custom_id is not None:
            taken.add(line.custom_id)
        kept.append(line)
    return kept


_TAKEN = select(batch_lines.c.custom_id).where(
    batch_lines.c.batch_id == bindparam("of_batch"), is_one_of(batch_lines.c.custom_id, "custom_ids")
)


def _with_room(tx: Transaction, tenant: str, lines: Sequence[NewLine]) -> list[NewLine]:
    """Return the first lines, as many as the quota of the tenant has room for. Raises QuotaFullError if it has none."""
    found = iter(have_room(tx, [line.submission for line in lines if line.submission is not None]))
    fitting = list(takewhile(lambda line: line.submission is None or next(found), lines))
    if lines and not fitting:
        raise QuotaFullError(tenant)
    return fitting


def cancel_jobs(db: Database, batch: BatchRecord) -> list[str]:
    """Cancel some jobs of a batch that have not ended, in the order of their lines. Return their ids."""
    query = (
        select(jobs.c.id)
        .join(batch_lines, batch_lines.c.job_id == jobs.c.id)
        .where(
            batch_lines.c.batch_id == batch.id,
            batch_lines.c.number >= batch.written_lines,
            ~HAS_ENDED,
        )
        .order_by(batch_lines.c.number)
        .limit(JOBS_PER_STEP)
    )
    with db.read() as tx:
        job_ids = list(tx.scalars(query))
    if not job_ids:
        return []
    with db.write(slow=True) as tx:
        tx.execute(lock_jobs(job_ids))
        return list(end_jobs(tx, job_ids, JobStatus.CANCELLED))
