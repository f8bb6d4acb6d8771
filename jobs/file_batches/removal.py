"""Removing file batches past their retention, with their files, a bounded number of rows in each transaction."""

from __future__ import annotations

from sqlalchemy import delete, exists, select, update

from jobs.file_batches.tables import batch_lines, file_batches
from jobs.files.creation_keys import remove_creation_keys
from jobs.files.removal import remove_unless_in_use
from jobs.files.tables import files
from jobs.store.clock import NOW
from jobs.store.database import Database

LINES_PER_STEP = 2_000
STEPS = 100  # most steps of one sweep; the next sweep does the rest


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


def _remove_step(db: Database, batch_id: str) -> bool:
    """Remove some lines of a batch, and the batch if it has none left. Return False if another process does so."""
    of_batch = batch_lines.c.batch_id == batch_id
    with db.write(slow=True) as tx:
        batch = tx.execute(
            select(file_batches).where(file_batches.c.id == batch_id).with_for_update(skip_locked=True)
        ).one_or_none()
        if batch is None:
            return False
        first_lines = select(batch_lines.c.number).where(of_batch).order_by(batch_lines.c.number).limit(LINES_PER_STEP)
        numbers = list(tx.scalars(first_lines))
        if numbers:
            tx.execute(delete(batch_lines).where(of_batch, batch_lines.c.number <= numbers[-1]))
            return True
        others = exists().where(file_batches.c.input_file_id == files.c.id, file_batches.c.id != batch_id)
        remove_unless_in_use(tx, files.c.id == batch.input_file_id, others)
        own = [batch.output_file_id, batch.error_file_id]
        tx.execute(update(files).where(files.c.id.in_(own)).values(remove_at=0.0))
        remove_creation_keys(tx, [batch_id])
        tx.execute(delete(file_batches).where(file_batches.c.id == batch_id))
        return True
