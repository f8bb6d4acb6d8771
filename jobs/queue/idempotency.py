"""Idempotency-Keys: the first request with a key stores a job, and all others are answered with that job.

Keys are the first rows that a transaction takes, and it takes them in one order. So two transactions that want the same
keys can't wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, Row, bindparam, case, delete, exists, literal_column, or_, select, update
from sqlalchemy.sql.dml import ReturningInsert

from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.records import Idempotency
from jobs.store.tables import HAS_ENDED, Seconds, idempotency_keys, jobs
from jobs.store.upsert import FindByKey, insert
from jobs.tenancy.ownership import VISIBLE
from scoring.error_codes import ErrorCode, RequestError
from scoring.quoting import quote

UNKNOWN_BODY = ""  # stored as the body hash with the Idempotency-Key of what is still being received
IN_PROGRESS_RETRY_SECONDS = 5.0


class WantedKey(NamedTuple):
    """A key that a job wants. Wanted keys are sorted by tenant and key."""

    tenant: str
    key: str
    body_hash: str
    job_id: str  # of a job that is about to be stored


def is_known(db: Database, tenant: str, idempotency: Idempotency) -> bool:
    """Return whether a job was accepted with this Idempotency-Key, whatever its body. Raises StorageUnavailable."""
    known = exists().where(
        idempotency_keys.c.tenant == tenant,
        idempotency_keys.c.key == idempotency.key,
        idempotency_keys.c.expires_at > NOW,
    )
    with db.read() as tx:
        return bool(tx.scalar(select(known)))


def take_keys(tx: Transaction, wanted: Sequence[WantedKey]) -> dict[str, Row[Any]]:
    """Reserve keys, each wanted once, for jobs that are about to be stored.

    Returns the rows of those keys that another job has, by the id of the job that wanted the key. If two requests have
    the same key, the second waits here until the first is committed or has failed.
    """
    if not wanted:
        return {}
    valid_seconds = tx.settings.idempotency_seconds
    values = [one._asdict() | {"valid_seconds": valid_seconds} for one in sorted(wanted)]
    taken = {row.job_id for row in tx.execute(_TAKE, values)}
    missed = {(one.tenant, one.key): one.job_id for one in wanted if one.job_id not in taken}
    if not missed:
        return {}
    # _TAKE has locked them, so they are still there.
    return {missed[key]: row for key, row in _FIND.rows(tx, list(missed)).items()}


def take_key(tx: Transaction, wanted: WantedKey) -> Row[Any] | None:
    """Reserve a key, or return its row if another job has it. Raises RequestError as :func:`check_earlier` does."""
    earlier = take_keys(tx, [wanted]).get(wanted.job_id)
    if earlier is not None:
        check_earlier(wanted.key, wanted.body_hash, earlier.body_hash)
    return earlier


def check_earlier(key: str, body_hash: str, earlier: str) -> None:
    """Raise an error unless what an earlier request with this key has made may be the answer to a request.

    body_hash, earlier: of the bodies of the request and of the earlier one; UNKNOWN_BODY while it is being received.
    Raises RequestError IDEMPOTENCY_KEY_REUSED, IDEMPOTENCY_IN_PROGRESS.
    """
    if earlier == UNKNOWN_BODY:
        raise RequestError(
            ErrorCode.IDEMPOTENCY_IN_PROGRESS,
            f"the first request with the Idempotency-Key {quote(key)} is still being received",
            retry_after=IN_PROGRESS_RETRY_SECONDS,
        )
    if body_hash not in (UNKNOWN_BODY, earlier):
        message = f"the Idempotency-Key {quote(key)} was used for another request: take a new one"
        raise RequestError(ErrorCode.IDEMPOTENCY_KEY_REUSED, message)


def taking(made: Column[str], *is_free: ColumnElement[bool]) -> ReturningInsert[Any]:
    """Return a statement that takes a key, unless another request has it, and returns the id of what is made with it.

    It is one statement, because each key must be freed and taken before the next one is locked. made: the column of the
    ids. is_free: further conditions on which a key is free that another request has taken.
    """
    keys = made.table
    values = insert(keys).values(expires_at=NOW + bindparam("valid_seconds", type_=Seconds))
    return values.on_conflict_do_update(
        index_elements=list(keys.primary_key),
        set_={name: values.excluded[name] for name in ("body_hash", made.name, "expires_at")},
        where=or_(keys.c.expires_at <= NOW, *is_free),
    ).returning(made)


def set_body_hash(tx: Transaction, made: Column[str], made_id: str, body_hash: str) -> None:
    """Store the hash of a body that has arrived as a whole. Its key, if it has one, is valid from now on."""
    values = {"body_hash": body_hash, "expires_at": NOW + tx.settings.idempotency_seconds}
    tx.execute(update(made.table).where(made == made_id).values(values))


def with_its_key(kept: ColumnElement[float], made: Column[str], made_id: Column[str]) -> ColumnElement[float]:
    """Return until when something is kept: until ``kept``, and at least until its key expires, so that it is known.

    made: the column of the keys' table that has the ids of what was made; made_id: the column of these ids.
    """
    # It has one key at most. An aggregate such as max() could make PostgreSQL read the index of all expiry times.
    key_until = select(made.table.c.expires_at).where(made == made_id).limit(1).scalar_subquery()
    return case((kept < key_until, key_until), else_=kept)


def remove_keys(tx: Transaction, job_ids: Sequence[str]) -> None:
    """Remove the keys of jobs that are about to be removed, in the order in which keys are taken.

    The foreign key would remove them in the order of the jobs.
    """
    of_jobs = select(*_OF_JOB).where(idempotency_keys.c.job_id.in_(job_ids))
    found = sorted(tuple(row) for row in tx.execute(of_jobs))
    if found:
        names = [f"of_{column.key}" for column in _OF_JOB]
        tx.execute(_REMOVE, [dict(zip(names, row, strict=True)) for row in found])


# Of the key that is in the way. In this clause, SQLAlchemy would take its columns for those of any key, and list the
# table once more in the subquery.
_ITS_JOB: ColumnElement[str] = literal_column("idempotency_keys.job_id")
_ITS_BODY: ColumnElement[str] = literal_column("idempotency_keys.body_hash")
# The key of an upload that failed is free again.
_FAILED = (_ITS_BODY == UNKNOWN_BODY) & HAS_ENDED
_GONE = select(jobs.c.id).where(jobs.c.id == _ITS_JOB, or_(~VISIBLE, _FAILED)).exists()
_TAKE = taking(idempotency_keys.c.job_id, _GONE)
_FIND = FindByKey(select(idempotency_keys), tuple(idempotency_keys.primary_key))
_OF_JOB = idempotency_keys.c["tenant", "key", "job_id"]
# With the job: while this waits for the lock of a key, another job may take the key, and then keeps it.
_REMOVE = delete(idempotency_keys).where(*(column == bindparam(f"of_{column.key}") for column in _OF_JOB))
