"""Read a job together with its scores and what computed them, for the routes that answer with them."""

from __future__ import annotations

from collections.abc import Sequence

from api.provenances import Shown
from api.rounds import Rounds
from api.service import Service
from jobs.queue.provenance import provenance_ids_of
from jobs.queue.read import scores_of
from jobs.store.records import JobRecord, JobResult, JobStatus, ScorePage
from jobs.tenancy.ownership import job_not_found

MAX_VALUES = 2**20
"""Scores that are read with one query, unless one job alone has more: this bounds the memory of a query."""


async def shared_result(results: Rounds[str, JobResult], tenant: str, job_id: str, values: int) -> JobResult:
    """Return a job, and its scores if it has succeeded, from a query that all who ask meanwhile share.

    values: how many scores it has. Raises RequestError JOB_NOT_FOUND, StorageUnavailable.
    """
    found = await results.answer(job_id, values)
    if found is None or found[0].tenant != tenant:
        raise job_not_found()
    return found


def read_result(service: Service, job: JobRecord, max_items: int | None = None) -> JobResult:
    """Count a job that has ended, and read its scores unless it has more than ``max_items``. Blocks on SQL."""
    service.metrics.count_ended(job.id, job.status)
    if job.status is not JobStatus.SUCCEEDED or (max_items is not None and job.total_items > max_items):
        return job, None
    return job, scores_of(service.database, job, 0, job.total_items)


def read_provenance(service: Service, job: JobRecord, page: ScorePage | None) -> Shown | None:
    """Return what computed the scores of a job that has ended; None before that. Blocks on SQL.

    page: all scores of the job, if they were read.
    """
    if not job.status.ended:
        return None
    ids = provenance_ids_of(service.database, job.id) if page is None else page.provenances
    return service.provenances.look_up(ids)


async def find_provenance(service: Service, tenant: str, ids: Sequence[int | None]) -> Shown:
    """Return provenances. They are read from the database the first time that this process meets them."""
    known = service.provenances.known(ids)
    return known if known is not None else await service.threads.sql_of(tenant, service.provenances.look_up, ids)
