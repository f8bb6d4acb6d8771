"""Jobs that were submitted: reading, listing, cancelling and deleting them, and the log of their webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from scoreline.client.exchange.flow import Flow, Give, Iteration, Request
from scoreline.client.exchange.sending import Service, send
from scoreline.client.job_objects import Delivery, Job, JobStatus
from scoreline.client.results import ItemScores, ScoreResult

PAGE_ITEMS = 1_000
"""The items of the largest page of scores."""

PAGE_JOBS = 100
"""The jobs of the largest page of a list."""

JobOrId = Job | str


def job_path(job: JobOrId, rest: str = "") -> str:
    """Return the path of a job."""
    return f"/v1/jobs/{quote(job if isinstance(job, str) else job.id, safe='')}{rest}"


def get(service: Service, job: JobOrId) -> Flow[Job]:
    """Return a job in its present state."""
    return (yield from send(service, Request("GET", job_path(job), Job.read)))


def jobs(
    service: Service,
    *,
    status: JobStatus | None = None,
    batch: str | None = None,
    after: str | None = None,
    page_jobs: int = PAGE_JOBS,
) -> Iteration[Job]:
    """Yield jobs, the newest first. The list is read page by page.

    status: only those in this state. batch: the jobs of this batch instead, in the order of its lines. after: the id of
    a job: begin behind it. page_jobs: jobs to read at a time.
    """
    params: dict[str, str | int] = {"limit": page_jobs}
    params |= {name: value for name, value in (("status", status), ("batch", batch)) if value is not None}
    while True:
        if after is not None:
            params["after"] = after
        page = yield from send(service, Request("GET", "/v1/jobs", _as_it_is, params=params), patient=True)
        for raw in page["data"]:
            yield Give(Job.read(raw))
            after = raw["id"]
        if not page["has_more"]:
            return


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
    request = Request("GET", job_path(job, "/scores"), _as_it_is, params=params)
    page = yield from send(service, request, patient=True)
    # A service of an older version does not say where the next page begins, and its pages are never shorter than asked.
    following = page.get("next_offset", offset + page_items)
    return page["data"], following if page["has_more"] else None


def result(service: Service, job: JobOrId) -> Flow[ScoreResult]:
    """Return all scores of a job that has succeeded, however many items it has.

    ``wait(...).result`` has them only of a job with at most 1,000 items. Raises ValueError for a job of likelihoods,
    which :meth:`likelihood_result` reads.
    """
    found = yield from get(service, job)
    _check_kind(found.kind == "likelihood")
    if found.result is not None:
        return found.result
    lines: list[Mapping[str, Any]] = []
    offset: int | None = 0
    while offset is not None:
        page, offset = yield from page_of_items(service, job, offset, PAGE_ITEMS)
        lines += page
    columns = {
        name: [line[name] for line in lines] if lines and lines[0].get(name) is not None else None
        for name in ("logprobs", "logits", "label_mass", "relevance")
    }
    raw = {
        **{name: found.raw[name] for name in ("id", "model", "usage", "warnings")},
        "scores": [line["scores"] for line in lines],
        **columns,
    }
    return ScoreResult.read(raw)


def cancel(service: Service, job: JobOrId) -> Flow[Job]:
    """Cancel a job. A job that has ended is not changed."""
    return (yield from send(service, Request("POST", job_path(job, "/cancel"), Job.read)))


def delete(service: Service, job: JobOrId) -> Flow[None]:
    """Delete a job with its inputs and scores. A job that runs is cancelled."""
    request = Request("DELETE", job_path(job), _nothing, gone_is_done=True)
    yield from send(service, request)


def deliveries(service: Service, job: JobOrId) -> Flow[list[Delivery]]:
    """Return what was sent, or is to be sent, to a job's webhook: nothing before the job has ended."""
    request = Request("GET", job_path(job, "/deliveries"), _deliveries)
    return (yield from send(service, request))


def redeliver(service: Service, job: JobOrId, delivery_id: str) -> Flow[Delivery]:
    """Send a delivery again now, whatever its state."""
    path = job_path(job, f"/deliveries/{quote(delivery_id, safe='')}/redeliver")
    return (yield from send(service, Request("POST", path, Delivery.read, is_repeatable=False)))


def _deliveries(raw: Mapping[str, Any]) -> list[Delivery]:
    return [Delivery.read(one) for one in raw["data"]]


def _check_kind(of_likelihoods: bool) -> None:
    if of_likelihoods:
        raise ValueError("this is a job of likelihoods: likelihoods() and likelihood_result() read it")


def _as_it_is(raw: Any) -> Any:
    return raw


def _nothing(_: object) -> None:
    return None
