"""Removing file batches with their jobs and files: at once for readers, and then their rows, step by step."""

from __future__ import annotations

from sqlalchemy import delete, exists, select, update

from jobs.file_batches.reading import find_batch
from jobs.file_batches.tables import BatchStatus, batch_lines, file_batches
from jobs.file_batches.writing import kept_until
from jobs.files.creation_keys import remove_creation_keys
from jobs.files.removal import remove_unless_in_use
from jobs.files.tables import Purpose, files
from jobs.queue.ending import ROUNDING_SECONDS, remove_at_once
from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.tables import DELETED
from jobs.webhooks.outbox import store_batch_delivery
from jobs.webhooks.tables import webhook_deliveries

LINES_PER_STEP = 2_000
STEPS = 100  # most steps of one sweep; the next sweep does the rest
STEPS_AT_ONCE = 5  # most steps of a deletion; the next sweep does the rest


def delete_batch(
    db: Database, tenant: str, batch_id: str, *, most_steps: int = STEPS_AT_ONCE, silently: bool = False
) -> None:
    """Delete a batch with its jobs and files; cancel it first if it has not ended.

    After the first transaction no reader sees the batch and its files, and no line of it becomes a job. Its jobs follow
    line by line; a sweep removes what this process leaves behind. An input file that another batch reads stays. A
    delivery to its webhook is still sent. most_steps: the steps of removing rows after the first transaction. silently:
    store no delivery if this cancels it.

    Raises RequestError BATCH_NOT_FOUND.
    """
    with db.write() as tx:
        batch = find_batch(tx, tenant, batch_id, lock=True)
        values: dict[str, object] = {"remove_at": DELETED}
        if not batch.status.ended:
            values |= {"status": BatchStatus.CANCELLED.value, "cancelling_at": NOW, "ended_at": NOW}
        changed = update(file_batches).where(file_batches.c.id == batch_id).values(values)
        row = tx.execute(changed.returning(*file_batches.c)).one()
        if not (batch.status.ended or silently):
            store_batch_delivery(tx, row)
        tx.execute(update(webhook_deliveries).where(webhook_deliveries.c.job_id == batch_id).values(remove_at=DELETED))
        remove_creation_keys(tx, [batch_id])
        _remove_files(tx, batch_id, row.input_file_id, row.output_file_id, row.error_file_id)
    for _ in range(most_steps):
        if not _remove_step(db, batch_id):
            return


def sweep_batches(db: Database) -> None:
    """Remove batches past their retention. Their files go with them; an input file that another batch reads stays."""
    for _ in range(STEPS):
        with db.read() as tx:
            batch_id = tx.scalar(
                select(file_batches.c.id)
                .where(file_batches.c.remove_at <= NOW)
                .order_by(file_batches.c.remove_at)
                .limit(1)
            )
        if batch_id is None or not _remove_step(db, batch_id):
            return


def shorten_retention(db: Database) -> tuple[int, int]:
    """Keep batches that have ended, and files, no longer than if they ended, or were sent, now.

    Returns how many batches and files are removed sooner. A file that expires earlier, because its sender wanted it so,
    stays as it is.
    """
    kept, files_kept = db.settings.retention_seconds, db.settings.file_retention_seconds
    with db.write(slow=True) as tx:
        until = kept_until(file_batches.c.ended_at + kept)
        shortened = tx.execute(
            update(file_batches)
            .where(file_batches.c.remove_at > NOW, until < file_batches.c.remove_at - ROUNDING_SECONDS)
            .values(remove_at=until)
            .returning(*file_batches.c["id", "remove_at", "output_file_id", "error_file_id"])
        ).all()
        for batch in shortened:
            own = [one for one in (batch.output_file_id, batch.error_file_id) if one is not None]
            tx.execute(update(files).where(files.c.id.in_(own)).values(expires_at=batch.remove_at))
            of_batch = webhook_deliveries.c.job_id == batch.id
            tx.execute(update(webhook_deliveries).where(of_batch).values(remove_at=batch.remove_at))
        until = files.c.created_at + files_kept
        sent = tx.scalars(
            update(files)
            .where(files.c.purpose == Purpose.BATCH.value, until < files.c.expires_at - ROUNDING_SECONDS)
            .values(expires_at=until)
            .returning(files.c.id)
        ).all()
    return len(shortened), len(sent)


def _remove_step(db: Database, batch_id: str) -> bool:
    """Remove some lines of a batch with their jobs, and the batch if it has no line left.

    Returns False if the batch is gone, or another process removes it.
    """
    of_batch = batch_lines.c.batch_id == batch_id
    with db.write(slow=True) as tx:
        batch = tx.execute(
            select(file_batches).where(file_batches.c.id == batch_id).with_for_update(skip_locked=True)
        ).one_or_none()
        if batch is None:
            return False
        first_lines = select(*batch_lines.c["number", "job_id"]).where(of_batch).order_by(batch_lines.c.number)
        lines = tx.execute(first_lines.limit(LINES_PER_STEP)).all()
        if lines:
            job_ids = [line.job_id for line in lines if line.job_id is not None]
            remove_at_once(tx, job_ids, deleted=batch.remove_at == DELETED)
            tx.execute(delete(batch_lines).where(of_batch, batch_lines.c.number <= lines[-1].number))
            return True
        _remove_files(tx, batch_id, batch.input_file_id, batch.output_file_id, batch.error_file_id)
        remove_creation_keys(tx, [batch_id])
        tx.execute(delete(file_batches).where(file_batches.c.id == batch_id))
        return True


def _remove_files(tx: Transaction, batch_id: str, input_file_id: str, *own: str | None) -> None:
    """Mark the files of a batch for removal, except for an input file that another batch has."""
    others = exists().where(file_batches.c.input_file_id == files.c.id, file_batches.c.id != batch_id)
    remove_unless_in_use(tx, files.c.id == input_file_id, others)
    tx.execute(update(files).where(files.c.id.in_([one for one in own if one is not None])).values(remove_at=0.0))
