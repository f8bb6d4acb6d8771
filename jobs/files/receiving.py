"""Receiving a file: it is stored in parts, and readers see it once the last part is stored.

While it is ``receiving``, each part is stored in a transaction that also adds it to the size of the file. A file whose
receiver falls silent is swept.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import func, insert, select, update

from jobs.files.creation_keys import CreationKey, remove_creation_keys, take_creation_key
from jobs.files.reading import FileRecord, file_record
from jobs.files.tables import FileState, Purpose, creation_keys, file_parts, files
from jobs.queue.idempotency import UNKNOWN_BODY, set_body_hash
from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.identifiers import new_file_id
from scoring.error_codes import ErrorCode, RequestError

PART_BYTES = 2**18
"""The bytes of a part: what a reader holds at a time."""

RETRY_SECONDS = (30.0, 60.0)
"""The least and the greatest ``Retry-After`` while a tenant has too many files or open batches."""


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A file that is being received."""

    id: str
    tenant: str


@dataclass(frozen=True, slots=True)
class EarlierFile:
    """A file that an earlier request with the same Idempotency-Key has made."""

    id: str
    body_hash: str  # of the earlier request


def begin_file(db: Database, tenant: str, max_files: int, key: str | None) -> ReceivedFile | EarlierFile:
    """Store a file that has no bytes yet, and reserve its Idempotency-Key before its body is known.

    max_files: how many files the tenant may have, those that its batches write included. Raises RequestError
    IDEMPOTENCY_IN_PROGRESS, QUOTA_EXCEEDED.
    """
    file_id = new_file_id()
    with db.write() as tx:
        if key is not None:
            earlier = take_creation_key(tx, CreationKey(tenant, key, UNKNOWN_BODY, file_id))
            if earlier is not None:
                return EarlierFile(earlier.made_id, earlier.body_hash)
        held = _files_of(tx, tenant)
        if held >= max_files:
            raise too_many(f"this tenant has {held} files already, the most it may have", "max_files_per_tenant")
        store_new_file(tx, file_id, tenant, Purpose.BATCH, "", FileState.RECEIVING)
    return ReceivedFile(file_id, tenant)


def check_room_for_output(tx: Transaction, tenant: str, max_files: int) -> None:
    """Refuse a batch of a tenant whose files are more than they may be. Raises RequestError QUOTA_EXCEEDED."""
    held = _files_of(tx, tenant)
    if held > max_files:
        raise too_many(f"this tenant has {held} files, and may have {max_files}; delete some", "max_files_per_tenant")


def store_new_file(
    tx: Transaction, file_id: str, tenant: str, purpose: Purpose, filename: str, state: FileState
) -> None:
    """Store the row of a file without bytes."""
    tx.execute(
        insert(files).values(
            id=file_id,
            tenant=tenant,
            purpose=purpose.value,
            filename=filename,
            state=state.value,
            bytes=0,
            lines=0,
            created_at=NOW,
            received_at=NOW if state is FileState.RECEIVING else None,
        )
    )


def stage_file(db: Database, file: ReceivedFile, content: bytes = b"", lines: int = 0) -> None:
    """Store further bytes of a file. Without bytes, only record that its receiver is alive.

    lines: how many lines that are not blank end with these bytes. Raises RequestError FILE_NOT_FOUND if the file was
    swept in the meantime.
    """
    with db.write() as tx:
        size = tx.scalar(
            update(files)
            .where(files.c.id == file.id, files.c.state == FileState.RECEIVING.value, files.c.remove_at.is_(None))
            .values(received_at=NOW, bytes=files.c.bytes + len(content), lines=files.c.lines + lines)
            .returning(files.c.bytes)
        )
        if size is None:
            raise _given_up()
        if content:
            append_parts(tx, file.id, size - len(content), content)


def append_parts(tx: Transaction, file_id: str, first_byte: int, content: bytes) -> None:
    """Store bytes of a file in parts, behind those that it has. first_byte: how many it has."""
    parts: Iterator[tuple[int, bytes]] = (
        (start, content[start : start + PART_BYTES]) for start in range(0, len(content), PART_BYTES)
    )
    tx.execute(
        insert(file_parts),
        [{"file_id": file_id, "first_byte": first_byte + start, "content": part} for start, part in parts],
    )


def accept_file(
    db: Database, file: ReceivedFile, *, purpose: Purpose, filename: str, expires_in: float, body_hash: str
) -> FileRecord:
    """Make a file visible whose bytes are all staged. expires_in: seconds from now.

    Raises RequestError FILE_NOT_FOUND if the file was swept in the meantime.
    """
    with db.write() as tx:
        row = tx.execute(
            update(files)
            .where(files.c.id == file.id, files.c.state == FileState.RECEIVING.value, files.c.remove_at.is_(None))
            .values(
                state=FileState.READY.value,
                purpose=purpose.value,
                filename=filename,
                received_at=None,
                expires_at=NOW + expires_in,
            )
            .returning(*files.c)
        ).one_or_none()
        if row is None:
            raise _given_up()
        set_body_hash(tx, creation_keys.c.made_id, file.id, body_hash)
        return file_record(row)


def give_up_file(db: Database, file_ids: Sequence[str], *, silent_seconds: float | None = None) -> None:
    """Give up files that are still being received. Nothing was promised, so nobody sees them, and their keys are free.

    Their rows are removed later. silent_seconds: only if their receivers have been silent for so long.
    """
    which = [files.c.id.in_(file_ids), files.c.state == FileState.RECEIVING.value]
    if silent_seconds is not None:
        which.append(files.c.received_at <= NOW - silent_seconds)
    with db.write() as tx:
        ended = list(
            tx.scalars(update(files).where(*which).values(remove_at=0.0, received_at=None).returning(files.c.id))
        )
        if ended:
            remove_creation_keys(tx, ended)


def _files_of(tx: Transaction, tenant: str) -> int:
    kept = (files.c.tenant == tenant, files.c.remove_at.is_(None))
    return int(tx.scalar(select(func.count()).select_from(files).where(*kept)) or 0)


def _given_up() -> RequestError:
    return RequestError(
        ErrorCode.FILE_NOT_FOUND, "the file was given up, because its receiver was silent; send it again"
    )


def too_many(message: str, limit: str) -> RequestError:
    """Return the error for a tenant that has as many files, or open batches, as it may have."""
    return RequestError(ErrorCode.QUOTA_EXCEEDED, message, retry_after=random.uniform(*RETRY_SECONDS), limit=limit)
