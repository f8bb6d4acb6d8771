"""The Idempotency-Keys of files and batches: the first request with a key makes one, later ones get it.

The keys of jobs are those of :mod:`jobs.queue.idempotency`, which knows jobs only. A key is free again once its file is
deleted or has expired, or its batch is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, bindparam, delete, literal_column, select

from jobs.files.reading import VISIBLE_FILE
from jobs.files.tables import FileState, creation_keys, files
from jobs.queue.idempotency import check_earlier, taking
from jobs.store.database import Transaction


class CreationKey(NamedTuple):
    """A key that a request wants for what it makes."""

    tenant: str
    key: str
    body_hash: str
    made_id: str  # of the file or batch that is about to be stored


def take_creation_key(tx: Transaction, wanted: CreationKey) -> Row[Any] | None:
    """Reserve a key, or return the row of the key if an earlier request has it.

    A second request with the same key waits here until the first one is committed or has failed. Raises RequestError
    IDEMPOTENCY_IN_PROGRESS; IDEMPOTENCY_KEY_REUSED if the earlier request is known to be a different one.
    """
    values = wanted._asdict() | {"valid_seconds": tx.settings.idempotency_seconds}
    if tx.scalar(_TAKE, values) is not None:
        return None
    earlier = tx.execute(_FIND, values).one()
    check_earlier(wanted.key, wanted.body_hash, earlier.body_hash)
    return earlier


def remove_creation_keys(tx: Transaction, made_ids: Sequence[str]) -> None:
    """Remove the keys of files or batches that are removed or given up."""
    tx.execute(delete(creation_keys).where(creation_keys.c.made_id.in_(made_ids)))


# Of the key that is in the way, as in jobs.queue.idempotency. A batch is kept for as long as its key, and a file may
# expire before.
_ITS_FILE: ColumnElement[str] = literal_column("creation_keys.made_id")
_RECEIVED = files.c.state == FileState.READY.value
_GONE = select(files.c.id).where(files.c.id == _ITS_FILE, _RECEIVED, ~VISIBLE_FILE).exists()
_TAKE = taking(creation_keys.c.made_id, _GONE)
_FIND = select(creation_keys).where(
    creation_keys.c.tenant == bindparam("tenant"), creation_keys.c.key == bindparam("key")
)
