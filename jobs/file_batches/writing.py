"""Writing the results of a batch, in the order of its lines: to its output file, or to its error file.

A line is written by the transaction that moves the place behind it, so each is written once, whichever process is
killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sqlalchemy import ColumnElement, Row, func, select, update

from jobs.file_batches.reading import BatchRecord, batch_record
from jobs.file_batches.tables import LINE_HAS_ENDED, BatchStatus, batch_lines, file_batches
from jobs.files.receiving import append_parts, store_new_file
from jobs.files.tables import FileState, Purpose, creation_keys, files
from jobs.queue.idempotency import with_its_key
from jobs.queue.read import results_of
from jobs.store.clock import NOW
from jobs.store.codec import TOKEN_BYTES, unpack_options
from jobs.store.database import Database, Transaction
from jobs.store.identifiers import new_file_id
from jobs.store.records import JobResult
from jobs.store.tables import jobs
from jobs.webhooks.outbox import store_batch_delivery

LINES_PER_STEP = 500
VALUES_PER_STEP = 2**18
"""The lines that one transaction writes, and their scores: one for each item and label, and where they are needed, one
for each token.
"""

INPUT_BYTES_PER_STEP = 2**20
"""The bytes of lines that have to be read again, because their answers hold what they sent."""


@dataclass(frozen=True, slots=True, eq=False)
class EndedLine:
    """A line that can be written."""

    number: int
    custom_id: str | None
    refusal: bytes | None  # what is written of a line without a job
    ranking: Mapping[str, Any] | None
    result: JobResult | None  # None: it has no job, or the job was deleted


@dataclass(frozen=True, slots=True)
class Written:
    """What is written at a time."""

    output: bytes
    errors: bytes
    completed: int  # lines of the output
    failed: int  # lines of the errors
    prompt_tokens: int
    cached_tokens: int
    is_late: bool  # whether a line was not scored before the batch expired


def ended_lines(db: Database, batch: BatchRecord) -> tuple[list[EndedLine], bool]:
    """Return the next lines of a batch, up to the first one whose job has not ended, and whether there may be more."""
    with db.read() as tx:
        rows = tx.execute(
            select(
                *batch_lines.c["number", "custom_id", "job_id", "refusal", "ranking"],
                *jobs.c["total_items", "prompt_tokens", "options"],
                (func.length(jobs.c.label_token_ids) / TOKEN_BYTES).label("labels"),
                (func.length(jobs.c.item_labels) / TOKEN_BYTES).label("item_labels"),
                LINE_HAS_ENDED.label("has_ended"),
            )
            .outerjoin(jobs, jobs.c.id == batch_lines.c.job_id)
            .where(batch_lines.c.batch_id == batch.id, batch_lines.c.number >= batch.written_lines)
            .order_by(batch_lines.c.number)
            .limit(LINES_PER_STEP)
        ).all()
    chosen: list[Row[Any]] = []
    is_cut = False
    values = size = 0
    for row in takewhile(lambda row: row.has_ended, rows):
        # An item may have the same label many times.
        values += max((row.total_items or 0) * int(row.labels or 0), int(row.item_labels or 0))
        if row.options is not None and unpack_options(row.options).needs_targets:
            values += row.prompt_tokens  # which are no fewer than the targets, whose scores are read one by one
        size += (row.ranking or {}).get("bytes", 0)
        if chosen and (values > VALUES_PER_STEP or size > INPUT_BYTES_PER_STEP):
            is_cut = True
            break
        chosen.append(row)
    job_ids = [row.job_id for row in chosen if row.job_id is not None]
    results = results_of(db, job_ids) if job_ids else {}
    lines = [EndedLine(row.number, row.custom_id, row.refusal, row.ranking, results.get(row.job_id)) for row in chosen]
    return lines, is_cut or len(lines) == LINES_PER_STEP


def write_lines(db: Database, batch: BatchRecord, stop: int, written: Written) -> bool:
    """Append to the files of a batch. stop: the number behind the last line.

    Returns False, and writes nothing, if another process has written the lines, the batch was deleted, or its status is
    another by now: who has not heard of a cancellation does not know why its jobs were cancelled.
    """
    with db.write() as tx:
        row = tx.execute(
            select(file_batches)
            .where(
                file_batches.c.id == batch.id,
                file_batches.c.written_lines == batch.written_lines,
                file_batches.c.status == batch.status.value,
            )
            .with_for_update(key_share=True)
        ).one_or_none()
        if row is None:
            return False
        now = batch_record(row)
        of_lines = (batch_lines.c.batch_id == batch.id, batch_lines.c.number >= now.written_lines)
        reserved = tx.scalar(select(func.sum(batch_lines.c.answer_bytes)).where(*of_lines, batch_lines.c.number < stop))
        tx.execute(
            update(file_batches)
            .where(file_batches.c.id == batch.id)
            .values(
                output_file_id=_append(tx, now, now.output_file_id, "output", written.output),
                error_file_id=_append(tx, now, now.error_file_id, "error", written.errors),
                written_lines=stop,
                reserved_bytes=file_batches.c.reserved_bytes - int(reserved or 0),
                completed_lines=file_batches.c.completed_lines + written.completed,
                failed_lines=file_batches.c.failed_lines + written.failed,
                prompt_tokens=file_batches.c.prompt_tokens + written.prompt_tokens,
                cached_tokens=file_batches.c.cached_tokens + written.cached_tokens,
                is_late=written.is_late or file_batches.c.is_late,
            )
        )
        return True


def _append(tx: Transaction, batch: BatchRecord, file_id: str | None, what: str, content: bytes) -> str | None:
    """Append to a file of the batch, which is made with its first line. Return its id."""
    if not content:
        return file_id
    if file_id is None:
        file_id = new_file_id()
        name = f"{batch.id}_{what}.jsonl"
        store_new_file(tx, file_id, batch.tenant, Purpose.BATCH_OUTPUT, name, FileState.WRITING)
    size = tx.scalar(
        update(files).where(files.c.id == file_id).values(bytes=files.c.bytes + len(content)).returning(files.c.bytes)
    )
    append_parts(tx, file_id, int(size) - len(content), content)
    return file_id


def is_written(db: Database, batch: BatchRecord) -> bool:
    """Return whether all lines of a batch are written."""
    if not batch.is_read:
        return False
    left = select(batch_lines.c.number).where(
        batch_lines.c.batch_id == batch.id, batch_lines.c.number >= batch.written_lines
    )
    with db.read() as tx:
        return tx.scalar(left.limit(1)) is None


def finalize_batch(db: Database, batch: BatchRecord) -> None:
    """Say that everything of a batch is written."""
    with db.write() as tx:
        tx.execute(
            update(file_batches)
            .where(file_batches.c.id == batch.id, file_batches.c.status == BatchStatus.IN_PROGRESS.value)
            .values(status=BatchStatus.FINALIZING.value, finalizing_at=NOW)
        )


def end_batch(db: Database, batch: BatchRecord, error_message: str | None = None) -> BatchRecord | None:
    """End a batch: its files can be read from now on, and its webhook will be called.

    error_message: why it has failed, if it has. Returns the batch, or None if it has ended before.
    """
    status = _final_status(batch) if error_message is None else BatchStatus.FAILED
    kept = NOW + db.settings.retention_seconds
    with db.write() as tx:
        row = tx.execute(
            update(file_batches)
            .where(file_batches.c.id == batch.id, file_batches.c.status == batch.status.value)
            .values(status=status.value, ended_at=NOW, remove_at=kept_until(kept), error_message=error_message)
            .returning(*file_batches.c)
        ).one_or_none()
        if row is None:
            return None
        tx.execute(
            update(files)
            .where(files.c.id.in_([row.output_file_id, row.error_file_id]), files.c.remove_at.is_(None))
            .values(state=FileState.READY.value, expires_at=row.remove_at)
        )
        store_batch_delivery(tx, row)
        return batch_record(row)


def kept_until(kept: ColumnElement[float]) -> ColumnElement[float]:
    """Return until when a batch is kept: at least until its Idempotency-Key expires, as jobs are."""
    return with_its_key(kept, creation_keys.c.made_id, file_batches.c.id)


def _final_status(batch: BatchRecord) -> BatchStatus:
    if batch.cancelling_at is not None:
        return BatchStatus.CANCELLED
    return BatchStatus.EXPIRED if batch.is_late else BatchStatus.COMPLETED
