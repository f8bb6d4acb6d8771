"""Removing files: at once for readers, and then their rows, a bounded number in each transaction."""

from __future__ import annotations

from sqlalchemy import ColumnElement, delete, exists, select, update

from jobs.files.creation_keys import remove_creation_keys
from jobs.files.reading import find_file
from jobs.files.receiving import give_up_file
from jobs.files.tables import FileState, creation_keys, file_parts, files
from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.free_rows import free_rows, remove_free_rows
from scoring.error_codes import ErrorCode, RequestError

FILES_PER_STEP = 100
PARTS_PER_STEP = 64
"""The parts that one transaction removes: 16 MiB."""
STEPS = 10  # most steps of one sweep; the next sweep does the rest


def delete_file(db: Database, tenant: str, file_id: str, in_use: ColumnElement[bool]) -> None:
    """Delete a file. After the first transaction no reader sees it; a sweep removes what this process leaves behind.

    in_use: the condition that something still reads the file. Raises RequestError FILE_NOT_FOUND, FILE_IN_USE.
    """
    with db.write() as tx:
        find_file(tx, tenant, file_id, lock=True)
        if tx.scalar(select(files.c.id).where(files.c.id == file_id, in_use)) is not None:
            message = "a batch that has not ended reads this file; cancel the batch first"
            raise RequestError(ErrorCode.FILE_IN_USE, message)
        tx.execute(update(files).where(files.c.id == file_id).values(remove_at=0.0))
        remove_creation_keys(tx, [file_id])
    while remove_files(db, files.c.id == file_id):
        pass


def sweep_files(db: Database, in_use: ColumnElement[bool]) -> bool:
    """Give up files whose receivers are silent, and remove those that are expired or deleted.

    Returns whether there may be more to remove. in_use: the condition that something still reads a file: such a file
    does not expire. Several processes may sweep at once.
    """
    silent_seconds = db.settings.upload_timeout_seconds
    with db.read() as tx:
        silent = list(
            tx.scalars(select(files.c.id).where(files.c.received_at <= NOW - silent_seconds).limit(FILES_PER_STEP))
        )
    if silent:
        give_up_file(db, silent, silent_seconds=silent_seconds)
    with db.read() as tx:
        expired = list(tx.scalars(_EXPIRED.where(~in_use).limit(FILES_PER_STEP)))
    if expired:
        with db.write() as tx:
            remove_unless_in_use(tx, files.c.id.in_(expired) & (files.c.expires_at <= NOW), in_use)
    may_be_more = all(remove_files(db) for _ in range(STEPS))
    with db.write() as tx:
        remove_free_rows(tx, tuple(creation_keys.primary_key), creation_keys.c.expires_at <= NOW)
    return may_be_more


def remove_unless_in_use(tx: Transaction, which: ColumnElement[bool], in_use: ColumnElement[bool]) -> None:
    """Mark files for removal, except for those that a batch still reads.

    A batch is created while the row of its file is locked. So the rows are locked first, by a statement of its own: the
    next one sees all batches that were created before.
    """
    locked = list(tx.scalars(select(files.c.id).where(which).order_by(files.c.id).with_for_update(key_share=True)))
    tx.execute(update(files).where(files.c.id.in_(locked), ~in_use).values(remove_at=0.0))


_EXPIRED = select(files.c.id).where(
    files.c.expires_at <= NOW, files.c.remove_at.is_(None), files.c.state == FileState.READY.value
)


def remove_files(db: Database, *which: ColumnElement[bool]) -> int:
    """Remove some parts of files that are to be removed, and the files that have none left.

    Returns how many files the step worked on.
    """
    if not _any_to_remove(db, *which):
        return 0
    with db.write(slow=True) as tx:
        gone = (files.c.remove_at <= NOW, *which)
        file_ids = [
            row.id for row in free_rows(tx, (files.c.id,), *gone, limit=FILES_PER_STEP, order_by=files.c.remove_at)
        ]
        if not file_ids:
            return 0
        parts = tx.execute(
            select(file_parts.c.file_id, file_parts.c.first_byte)
            .where(file_parts.c.file_id.in_(file_ids))
            .limit(PARTS_PER_STEP)
        ).all()
        for part in parts:
            tx.execute(
                delete(file_parts).where(
                    file_parts.c.file_id == part.file_id, file_parts.c.first_byte == part.first_byte
                )
            )
        remove_creation_keys(tx, file_ids)
        tx.execute(delete(files).where(files.c.id.in_(file_ids), ~exists().where(file_parts.c.file_id == files.c.id)))
        return len(file_ids)


def _any_to_remove(db: Database, *which: ColumnElement[bool]) -> bool:
    with db.read() as tx:
        return tx.scalar(select(files.c.id).where(files.c.remove_at <= NOW, *which).limit(1)) is not None
