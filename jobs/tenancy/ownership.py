"""Whose a job is: the one place that says which jobs a tenant may see, and finds one of them for it.

A job of another tenant, and one whose time of keeping is over, is a missing job, in the same words: nobody learns from
an answer whether it is there. Whatever is asked for by a job's id on somebody's behalf goes through :func:`find_job`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, or_, select

from jobs.store.database import Database
from jobs.store.tables import jobs
from scoring.error_codes import ErrorCode, RequestError


def visible(db: Database) -> ColumnElement[bool]:
    """Whether a job is there for readers: its time of keeping is not over, whether or not its rows are still there."""
    return or_(jobs.c.remove_at.is_(None), jobs.c.remove_at > db.now)


def owned(db: Database, tenant: str) -> ColumnElement[bool]:
    """Whether a job is there for this tenant."""
    return and_(jobs.c.tenant == tenant, visible(db))


def find_job(connection: Connection, db: Database, tenant: str, job_id: str, *, lock: bool = False) -> Row[Any]:
    """A tenant's job. lock: for a change, in the order of locks. Raises RequestError JOB_NOT_FOUND."""
    wanted = select(jobs).where(jobs.c.id == job_id, owned(db, tenant))
    row = connection.execute(wanted.with_for_update(key_share=True) if lock else wanted).one_or_none()
    if row is None:
        raise missing_job()
    return row


def missing_job() -> RequestError:
    """The error for a job that is not there, or not the caller's."""
    return RequestError(ErrorCode.JOB_NOT_FOUND, "there is no such job")
