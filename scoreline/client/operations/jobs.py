"""Jobs that were submitted: reading, listing, cancelling and deleting them, and the log of their webhooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from scoreline.client.doubts import Doubts
from scoreline.client.errors import Conflict, JobCancelled, JobEnded, JobExpired, JobFailed
from scoreline.client.exchange.flow import Flow, Give, Iteration, Request
from scoreline.client.exchange.sending import Service, listed, page_of, send
from scoreline.client.job_objects import Delivery, Job, JobStatus
from scoreline.client.results import OPTIONAL_COLUMNS, ItemScores, ScoreResult
from scoreline.client.tables import NOTHING_ASKED

PAGE_ITEMS = 1_000
"""The items of the largest page of scores."""

PAGE_JOBS = 100
"""The jobs of the largest page of a list."""

OPEN: tuple[JobStatus, ...] = ("receiving", "queued", "running")
"""The states of a job that has not ended, in their order."""

JobOrId = Job | str


def job_path(job: JobOrId, rest: str = "") -> str:
    """Return the path of a job."""
    return f"/v1/jobs/{quote(job if isinstance(job, str) else job.id, safe='')}{rest}"


def reading(job: JobOrId) -> Callable[[Mapping[str, Any]], Job]:
    """Return what reads an answer about a job. What a job remembers of its request goes on to the answer."""
    asked = NOTHING_ASKED if isinstance(job, str) else job.asked
    return lambda raw: Job.read(raw, asked)


def get(service: Service, job: JobOrId) -> Flow[Job]:
    """Return a job in its present state."""
    return (yield from present(service, job, patient=False))


def present(service: Service, job: JobOrId, *, patient: bool = True) -> Flow[Job]:
    """Return a job in its present state. patient: as part of an operation that takes long anyway."""
    return (yield from send(service, Request("GET", job_path(job), reading(job)), patient=patient))


def jobs(
    service: Service,
    *,
    status: JobStatus | None = None,
    batch: str | None = None,
    calls: bool = False,
    after: str | None = None,
    page_jobs: int = PAGE_JOBS,
) -> Iteration[Job]:
    """Yield jobs, the newest first. The list is read page by page.

    status: only those in this state. batch: the jobs of this batch instead, in the order of its lines. calls: calls
    of :meth:`score` and the like instead. after: the id of a job: begin behind it. page_jobs: jobs to read at a time.
    """
    params = {"limit": page_jobs, "status": status, "batch": batch, "calls": "true" if calls else None}
    yield from listed(service, "/v1/jobs", Job.read, params, after)


def scores(service: Service, job: JobOrId, *, page_items: int = PAGE_ITEMS) -> Iteration[ItemScores]:
    """Yield what is scored so far, in the order of the items. It is read page by page, so memory stays small.

    page_items: items to read at a time, at most 1,000. Raises ValueError for a job of likelihoods, which
    :meth:`likelihoods` reads.
    """
    offset: int | None = 0
    while offset is not None:
        lines, offset = yield from page_of_items(service, job, offset, page_items)
        for line in lines:
            _check_kind("logprob" in line)
            yield Give(ItemScores.read(line))


def page_of_items(
    service: Service, job: JobOrId, offset: int, page_items: int
) -> Flow[tuple[list[Mapping[str, Any]], int | None]]:
    """Return the lines of a page of a job, and the offset of the next page; None if there is no next one."""
    params: dict[str, str | int] = {"offset": offset, "limit": page_items}
    request: Request[Any] = Request("GET", job_path(job, "/scores"), params=params)
    page = yield from send(service, request, patient=True)
    # A service of an older version does not say where the next page begins, and its pages are never shorter than asked.
    following = page.get("next_offset", offset + page_items)
    return page["data"], following if page["has_more"] else None


def lines_of(service: Service, job: JobOrId) -> Flow[list[Mapping[str, Any]]]:
    """Return the lines of all items of a job."""
    lines: list[Mapping[str, Any]] = []
    offset: int | None = 0
    while offset is not None:
        page, offset = yield from page_of_items(service, job, offset, PAGE_ITEMS)
        lines += page
    return lines


def result(service: Service, job: JobOrId) -> Flow[ScoreResult]:
    """Return all scores of a job that has succeeded, however many items it has.

    ``wait(...).result`` has them only of a job with at most 1,000 items. Raises Conflict for a job that has not ended,
    and JobFailed, JobCancelled or JobExpired for one that has ended without success; :meth:`scores` reads what is
    scored of it. Raises ValueError for a job of likelihoods, which :meth:`likelihood_result` reads.

    What computed the scores of a job with more than 1,000 items is returned whether it was asked for or not.
    """
    found = yield from present(service, job)
    _check_kind(found.kind == "likelihood")
    check_succeeded(found)
    if found.result is not None:
        return found.result
    lines = yield from lines_of(service, job)
    columns = {
        name: [line[name] for line in lines] if lines and lines[0].get(name) is not None else None
        for name in OPTIONAL_COLUMNS
    }
    raw = {**raw_of_result(found), "scores": [line["scores"] for line in lines], **columns}
    raw["warnings"] = [*found.warnings, *_doubts_of(found, lines)]
    return ScoreResult.read(raw, found.asked)


def check_succeeded(job: Job) -> None:
    """Raise the error for a job that has not succeeded: its pages leave out what is not scored."""
    if not job.ended:
        message = f"{job.id} is still {job.status}, so it has no result: wait() returns it when it has succeeded"
        raise Conflict("job_not_finished", message, job_id=job.id)
    if job.status != "succeeded":
        raise ended_without_success(job)


def raw_of_result(job: Job) -> dict[str, Any]:
    """Return the fields that the result of a job has from the job."""
    return {name: job.raw[name] for name in ("id", "model", "usage", "warnings", "provenance") if name in job.raw}


def _doubts_of(job: Job, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the warnings that the service gives with the scores of a smaller job."""
    if job.raw.get("label_scoring") in ("sequence", "class"):
        return []
    doubts = Doubts()
    for line in lines:
        doubts.add(line["index"], line["scores"], line.get("label_mass"))
    return doubts.warnings()


def ended_without_success(job: Job) -> JobEnded:
    """Return the error for a job that failed, was cancelled or has expired."""
    error: JobEnded
    if job.status == "failed":
        code, message = job.error or ("job_failed", "it failed")
        error = JobFailed(code, f"{job.id} failed: {message}", job_id=job.id)
    elif job.status == "cancelled":
        error = JobCancelled("job_cancelled", f"{job.id} was cancelled", job_id=job.id)
    else:
        message = f"{job.id} was given up: {job.scored_items} of {job.total_items} items were scored in time"
        error = JobExpired("job_expired", message, job_id=job.id)
    error.job = job
    return error


def cancel(service: Service, job: JobOrId) -> Flow[Job]:
    """Cancel a job. A job that has ended is not changed."""
    return (yield from send(service, Request("POST", job_path(job, "/cancel"), reading(job))))


def cancel_all(service: Service, *, metadata: Mapping[str, str] | None = None) -> Flow[list[Job]]:
    """Cancel all jobs that have not ended, and return them. Batches are left alone: :meth:`cancel_batch` cancels one.

    metadata: only jobs that carry all of these entries, such as ``{"run": "scores.csv-0c91a2f4"}``.

    >>> client.cancel_all(metadata={"run": "scores.csv-0c91a2f4"})
    []
    """
    wanted = (metadata or {}).items()
    cancelled: list[Job] = []
    for status in OPEN:  # A job goes through them in this order, so none is missed on its way.
        after, has_more = None, True
        while has_more:
            page = yield from page_of(service, "/v1/jobs", {"limit": PAGE_JOBS, "status": status}, after)
            has_more = page["has_more"]
            for job in map(Job.read, page["data"]):
                after = job.id
                if wanted <= job.metadata.items():
                    cancelled.append((yield from cancel(service, job)))
    return cancelled


def delete(service: Service, job: JobOrId) -> Flow[None]:
    """Delete a job with its inputs and scores. A job that runs is cancelled."""
    yield from send(service, Request("DELETE", job_path(job), lambda _: None, gone_is_done=True))


def deliveries(service: Service, job: JobOrId) -> Flow[list[Delivery]]:
    """Return what was sent, or is to be sent, to a job's webhook: nothing before the job has ended."""
    return (yield from deliveries_at(service, job_path(job, "/deliveries")))


def redeliver(service: Service, job: JobOrId, delivery_id: str) -> Flow[Delivery]:
    """Send a delivery again now, whatever its state."""
    return (yield from redelivered(service, job_path(job, "/deliveries"), delivery_id))


def deliveries_at(service: Service, path: str) -> Flow[list[Delivery]]:
    """Return the deliveries of a job or a batch. path: where they are."""
    return (yield from send(service, Request("GET", path, lambda raw: [Delivery.read(one) for one in raw["data"]])))


def redelivered(service: Service, path: str, delivery_id: str) -> Flow[Delivery]:
    """Send a delivery of a job or a batch again. path: where all of them are."""
    path = f"{path}/{quote(delivery_id, safe='')}/redeliver"
    return (yield from send(service, Request("POST", path, Delivery.read, is_repeatable=False)))


def _check_kind(of_likelihoods: bool) -> None:
    if of_likelihoods:
        raise ValueError("this is a job of likelihoods: likelihoods() and likelihood_result() read it")
