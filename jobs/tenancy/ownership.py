"""Which jobs a tenant may see. Every lookup of a job by its id for a tenant goes through :func:`find_job`.

A job of another tenant, and one whose retention is over, gives the same error as a job that never existed, so that a
response does not tell whether the job exists.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Row, and_, bindparam, select

from jobs.store.clock import is_to_come
from jobs.store.database import Transaction
from jobs.store.tables import jobs
from scoring.error_codes import ErrorCode, RequestError

VISIBLE = is_to_come(jobs.c.remove_at)
"""SQL condition: the retention of the job is not over. Its rows may exist for a while afterwards."""


def owned(tenant: str) -> ColumnElement[bool]:
    """Return the SQL condition that a job is visible to this tenant."""
    return and_(jobs.c.tenant == tenant, VISIBLE)


def find_job(tx: Transaction, tenant: str, job_id: str, *, lock: bool = False) -> Row[Any]:
    """Return a tenant's job. lock: whether to lock its row, for a change. Raises RequestError JOB_NOT_FOUND."""
    row = tx.execute(_LOCK if lock else _FIND, {"of_job": job_id, "of_tenant": tenant}).one_or_none()
    if row is None:
        raise job_not_found()
    return row


_FIND = select(jobs).where(jobs.c.id == bindparam("of_job"), jobs.c.tenant == bindparam("of_tenant"), VISIBLE)
_LOCK = _FIND.with_for_update(key_share=True)


def job_not_found() -> RequestError:
    """Return the error for a job that does not exist or that the caller may not see."""
    return RequestError(ErrorCode.JOB_NOT_FOUND, "there is no such job")
