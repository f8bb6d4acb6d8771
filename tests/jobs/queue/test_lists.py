"""Lists of jobs read only jobs that they show, however many others a tenant has."""

from __future__ import annotations

import pytest
from sqlalchemy import literal_column, select, text

from jobs.file_batches.reading import list_jobs_of_batch
from jobs.file_batches.tables import batch_lines, file_batches
from jobs.queue.ending import cancel, end_jobs
from jobs.queue.read import list_jobs
from jobs.store.database import Database
from jobs.store.records import JobError, JobStatus, Origin
from jobs.store.tables import jobs
from scoring.error_codes import ErrorCode
from tests.jobs.plans import plans_of
from tests.jobs.work import MODEL, finish_all, submit, take

OTHERS = 5_000
ERROR = JobError(ErrorCode.INTERNAL_ERROR, "it was hard")


def fail(store: Database, job_id: str) -> str:
    with store.write() as tx:
        end_jobs(tx, [job_id], JobStatus.FAILED, ERROR)
    return job_id


def copy(store: Database, job_id: str, times: int) -> None:
    """Store copies of a job, whose ids begin with the one of the job."""
    numbers = text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :times) ")
    kept = ", ".join(f'"{column.name}"' for column in jobs.c if column.name != "id")
    with store.write(slow=True) as tx:
        tx.execute(
            text(
                f"INSERT INTO jobs (id, {kept}) {numbers.text}"
                f" SELECT substr(id, 1, 30) || CAST(1000000 + i AS text), {kept} FROM jobs, n WHERE id = :copied"
            ),
            {"copied": job_id, "times": times},
        )


def collect_statistics(store: Database) -> None:
    """Do what PostgreSQL does by itself now and then. SQLite never does."""
    if not store.is_sqlite:
        with store.write(slow=True) as tx:
            tx.execute(text("ANALYZE"))


@pytest.mark.parametrize(
    ("status", "index"),
    [
        (None, "ix_jobs_listed"),
        (JobStatus.SUCCEEDED, "ix_jobs_listed"),
        (JobStatus.QUEUED, "ix_jobs_listed_unfinished"),
        (JobStatus.FAILED, "ix_jobs_failed"),
    ],
)
def test_a_list_of_jobs_reads_no_calls(store: Database, status: JobStatus | None, index: str) -> None:
    done = submit(store)
    finish_all(store, take(store))
    failed, waiting = fail(store, submit(store)), submit(store)
    call = submit(store, origin=Origin.CALL)
    copy(store, call, OTHERS)
    copy(store, done, 500)
    collect_statistics(store)
    with plans_of(store, "ORDER BY jobs.id DESC") as plans:
        found = [job.id for job in list_jobs(store, "default", status, limit=1_000)]
    [plan] = plans
    assert call not in found
    wanted = {None: {done, failed, waiting}, JobStatus.SUCCEEDED: {done}}
    assert wanted.get(status, {waiting if status is JobStatus.QUEUED else failed}) <= set(found)
    assert len(found) == (503 if status is None else 501 if status is JobStatus.SUCCEEDED else 1)
    assert index in plan.replace("(", " ").split(), plan


def test_failed_lines_are_found_among_many_that_succeeded(store: Database) -> None:
    line = submit(store, origin=Origin.LINE)
    finish_all(store, take(store))
    copy(store, line, OTHERS)
    failed = fail(store, submit(store, origin=Origin.LINE))
    now = {"created_at": 0.0, "expires_at": 1.0, "next_step_at": 0.0}
    counts = dict.fromkeys(
        ("total_lines", "input_bytes", "read_bytes", "read_lines", "written_lines", "completed_lines", "failed_lines"),
        0,
    )
    texts = {"id": "batch_a", "tenant": "default", "model": MODEL, "endpoint": "/v1/score", "status": "completed"}
    others = {"input_file_id": "file", "completion_window": "1h", "metadata": {}}
    tokens = {"prompt_tokens": 0, "cached_tokens": 0}
    with store.write() as tx:
        tx.execute(file_batches.insert().values(**texts, **others, **now, **counts, **tokens))
        numbered = select(
            literal_column("'batch_a'"), literal_column("row_number() OVER (ORDER BY id)"), jobs.c.id
        ).select_from(jobs)
        tx.execute(batch_lines.insert().from_select(["batch_id", "number", "job_id"], numbered))
    collect_statistics(store)
    with plans_of(store, "ORDER BY batch_lines.number") as plans:
        found = list_jobs_of_batch(store, "default", batch_id="batch_a", status=JobStatus.FAILED, limit=20)
    assert [job.id for job in found] == [failed]
    [plan] = plans
    assert "ix_jobs_failed" in plan, plan
    assert "Seq Scan" not in plan


def test_each_status_is_listed_however_a_job_came_to_it(store: Database) -> None:
    ids = {JobStatus.SUCCEEDED: submit(store)}
    finish_all(store, take(store))
    ids[JobStatus.RUNNING] = submit(store)
    take(store)
    ids[JobStatus.CANCELLED] = submit(store)
    cancel(store, "default", ids[JobStatus.CANCELLED])
    ids[JobStatus.FAILED] = fail(store, submit(store))
    ids[JobStatus.QUEUED] = submit(store)
    for status, job_id in ids.items():
        assert [job.id for job in list_jobs(store, "default", status)] == [job_id]
