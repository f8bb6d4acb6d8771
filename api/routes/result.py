"""Read a job together with its scores, for the routes that answer with both."""

from __future__ import annotations

from api.service import Service
from jobs.queue.read import scores_of
from jobs.store.records import JobRecord, JobResult, JobStatus


def read_result(service: Service, job: JobRecord, max_items: int | None = None) -> JobResult:
    """Count a job that has ended, and read its scores unless it has more than ``max_items``. Blocks on SQL."""
    service.metrics.count_ended(job.id, job.status)
    if job.status is not JobStatus.SUCCEEDED or (max_items is not None and job.total_items > max_items):
        return job, None
    return job, scores_of(service.database, job, 0, job.total_items)
