"""Reading files: what they are, and their bytes. Files of other tenants count as missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, bindparam, func, select

from jobs.files.tables import FileState, Purpose, file_parts, files
from jobs.store.clock import is_to_come
from jobs.store.database import Database, Transaction
from scoring.error_codes import ErrorCode, RequestError

VISIBLE_FILE = and_(
    files.c.state == FileState.READY.value,
    files.c.remove_at.is_(None),
    is_to_come(files.c.expires_at),
)
"""SQL condition: the file is complete, and is neither deleted nor expired."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file as it is stored. Times are Unix seconds on the database's clock."""

    id: str
    purpose: Purpose
    filename: str
    bytes: int
    lines: int  # of a file that was received: those that are not blank
    created_at: float
    expires_at: float | None


def file_record(row: Row[Any]) -> FileRecord:
    """Return a row of the table as a record."""
    return FileRecord(row.id, Purpose(row.purpose), row.filename, row.bytes, row.lines, row.created_at, row.expires_at)


def owned_file(tenant: str) -> ColumnElement[bool]:
    """Return the SQL condition that a file is visible to this tenant."""
    return and_(files.c.tenant == tenant, VISIBLE_FILE)


def find_file(tx: Transaction, tenant: str, file_id: str, *, lock: bool = False) -> FileRecord:
    """Return a tenant's file. lock: whether to lock its row, for a change. Raises RequestError FILE_NOT_FOUND."""
    query = select(files).where(files.c.id == file_id, owned_file(tenant))
    row = tx.execute(query.with_for_update(key_share=True) if lock else query).one_or_none()
    if row is None:
        raise file_not_found()
    return file_record(row)


def file_not_found(param: str | None = None) -> RequestError:
    """Return the error for a file that does not exist or that the caller may not see."""
    return RequestError(ErrorCode.FILE_NOT_FOUND, "there is no such file", param=param)


def get_file(db: Database, tenant: str, file_id: str) -> FileRecord:
    """Return one file. Raises RequestError FILE_NOT_FOUND."""
    with db.read() as tx:
        return find_file(tx, tenant, file_id)


def list_files(
    db: Database,
    tenant: str,
    *,
    purpose: Purpose | None = None,
    limit: int,
    after: str | None = None,
    oldest_first: bool = False,
) -> list[FileRecord]:
    """Return a tenant's files, newest first unless told otherwise. after: the last id of the page before."""
    query = select(files).where(owned_file(tenant))
    if purpose is not None:
        query = query.where(files.c.purpose == purpose.value)
    if after is not None:
        query = query.where(files.c.id > after if oldest_first else files.c.id < after)
    query = query.order_by(files.c.id if oldest_first else files.c.id.desc()).limit(limit)
    with db.read() as tx:
        return [file_record(row) for row in tx.execute(query)]


def read_part(db: Database, tenant: str, file_id: str, first_byte: int) -> bytes | None:
    """Return the part of a tenant's file that begins at a byte; None behind the last one.

    One statement sees one moment, so a file that was deleted is not mistaken for one that ends here. Raises
    RequestError FILE_NOT_FOUND.
    """
    with db.read() as tx:
        row = tx.execute(_PART, {"of_file": file_id, "at": first_byte, "of_tenant": tenant}).one_or_none()
    if row is None:
        raise file_not_found()
    content: bytes | None = row.content
    return content


_PART = (
    select(file_parts.c.content)
    .select_from(files)
    .outerjoin(file_parts, and_(file_parts.c.file_id == files.c.id, file_parts.c.first_byte == bindparam("at")))
    .where(files.c.id == bindparam("of_file"), files.c.tenant == bindparam("of_tenant"), VISIBLE_FILE)
)


def read_bytes(db: Database, file_id: str, start: int, size: int) -> bytes:
    """Return ``size`` bytes of a file from the byte ``start`` on, or fewer where it ends. Blocks on SQL.

    The file may be of any tenant, so its id must come from a batch of the tenant.
    """
    values = {"of_file": file_id, "start": start, "stop": start + size}
    with db.read() as tx:
        parts = tx.execute(_RANGE, values).all()
    if not parts:
        return b""
    content = b"".join(part.content for part in parts)
    skipped = start - parts[0].first_byte
    return content[skipped : skipped + size]


_FIRST = select(func.max(file_parts.c.first_byte)).where(
    file_parts.c.file_id == bindparam("of_file"), file_parts.c.first_byte <= bindparam("start")
)
_RANGE = (
    select(file_parts.c.first_byte, file_parts.c.content)
    .where(
        file_parts.c.file_id == bindparam("of_file"),
        file_parts.c.first_byte >= _FIRST.scalar_subquery(),
        file_parts.c.first_byte < bindparam("stop"),
    )
    .order_by(file_parts.c.first_byte)
)
