"""Likelihoods: calls that wait for them, jobs of them, and reading those of a job."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from scoreline.client.exchange.bodies import JsonBody, PackedLines
from scoreline.client.exchange.flow import Flow, Give, Iteration, Request
from scoreline.client.exchange.sending import Service, send
from scoreline.client.job_objects import DryRun, Job
from scoreline.client.operations.jobs import (
    PAGE_ITEMS,
    JobOrId,
    check_succeeded,
    lines_of,
    page_of_items,
    present,
    raw_of_result,
)
from scoreline.client.operations.scoring import call, check_items, fields_of, remembered
from scoreline.client.operations.submitting import submitted
from scoreline.client.options import Items, LikelihoodJobOptions, LikelihoodOptions, Priority, Query, StreamedItems
from scoreline.client.results import ItemLikelihood, LikelihoodResult

KIND = "likelihood"
"""What a job of likelihoods calls itself."""


def likelihood(
    service: Service,
    query: Query,
    items: Items,
    *,
    timeout: float = 60.0,
    on_timeout: Literal["continue", "cancel"] | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[LikelihoodOptions],
) -> Flow[LikelihoodResult]:
    """Return how probable each item is behind the query, and wait for it.

    timeout: seconds to wait; then TimedOut is raised, and the job goes on. on_timeout: ``"cancel"``: it is given up.
    idempotency_key: makes it safe to repeat the call. The client makes one for its own repetitions, so a call that you
    interrupt is scored all the same.

    >>> result = client.likelihood("The capital of France is", [" Paris", " London"])
    >>> result.logprob[0] > result.logprob[1]
    True
    """
    body = fields_of(locals())
    asked = remembered(items)
    request = call("/v1/likelihood", lambda raw: LikelihoodResult.read(raw, asked), body, timeout, idempotency_key)
    return (yield from send(service, request))


def submit_likelihood(
    service: Service,
    query: Query,
    items: Items,
    *,
    idempotency_key: str | None = None,
    **options: Unpack[LikelihoodJobOptions],
) -> Flow[Job]:
    """Submit a job of likelihoods. Once this returns, the job survives the crash of any process of the service.

    ``likelihoods`` of the awaited job, :meth:`likelihoods` and :meth:`likelihood_result` have what was computed.
    idempotency_key: makes it safe to submit again after an error, as that of :meth:`submit`.

    >>> job = client.submit_likelihood("The capital of France is", [" Paris", " London"])
    >>> found = client.wait(job).likelihoods
    >>> found.logprob[0] > found.logprob[1]
    True
    """
    body = fields_of(locals()) | {"kind": KIND}
    return (yield from submitted(service, JsonBody(body), idempotency_key, remembered(items)))


def upload_likelihood(
    service: Service,
    query: Query,
    items: StreamedItems,
    *,
    idempotency_key: str | None = None,
    **options: Unpack[LikelihoodJobOptions],
) -> Flow[Job]:
    """:meth:`submit_likelihood` for a large job: items are sent as the iterable yields them, as by :meth:`upload`.

    idempotency_key: as that of :meth:`submit`.

    >>> job = client.upload_likelihood("The capital of", (f" country {n}" for n in range(2_000)), priority="bulk")
    >>> job.total_items
    2000
    """
    first = fields_of(locals(), "items") | {"kind": KIND}
    lines: Any = items  # A column need not name itself iterable.
    return (yield from submitted(service, PackedLines(first, lines), idempotency_key, remembered(items)))


def dry_run_likelihood(
    service: Service,
    query: Query,
    items: Items,
    *,
    priority: Priority | None = None,
    **options: Unpack[LikelihoodOptions],
) -> Flow[DryRun]:
    """Return what a job of likelihoods would take, without submitting it.

    priority: that of the job.

    >>> client.dry_run_likelihood("The capital of France is", [" Paris", " London"]).total_items
    2
    """
    body = fields_of(locals()) | {"kind": KIND, "dry_run": True}
    check_items(items)
    request = Request("POST", "/v1/jobs", DryRun.read, body=JsonBody(body))
    return (yield from send(service, request))


def likelihoods(service: Service, job: JobOrId, *, page_items: int = PAGE_ITEMS) -> Iteration[ItemLikelihood]:
    """Yield the likelihoods that are there, in the order of the items. They are read page by page, in small memory.

    page_items: items to read at a time, at most 1,000.
    """
    offset: int | None = 0
    while offset is not None:
        lines, offset = yield from page_of_items(service, job, offset, page_items)
        _check_kind(KIND if not lines or "logprob" in lines[0] else "score")
        for line in lines:
            yield Give(ItemLikelihood.read(line))


def likelihood_result(service: Service, job: JobOrId) -> Flow[LikelihoodResult]:
    """Return all likelihoods of a job that has succeeded, however many items it has.

    ``wait(...).likelihoods`` has them only of a job with at most 1,000 items. For a job that has not succeeded, this
    raises what :meth:`result` does; :meth:`likelihoods` reads what is computed of it. Raises ValueError for a job of
    another kind.
    """
    found = yield from present(service, job)
    _check_kind(found.kind)
    check_succeeded(found)
    if found.likelihoods is not None:
        return found.likelihoods
    lines = yield from lines_of(service, job)
    raw = {
        **raw_of_result(found),
        **{name: [line[name] for line in lines] for name in ("logprob", "num_tokens", "is_greedy")},
        **{name: [line[name] for line in lines] for name in ("token_logprobs", "tokens") if lines and name in lines[0]},
    }
    return LikelihoodResult.read(raw, found.asked)


def _check_kind(kind: str) -> None:
    if kind != KIND:
        how = "get() and wait() read it" if kind == "decision" else "scores() and result() read it"
        raise ValueError(f"this is a job of {kind}s, not of likelihoods: {how}")
