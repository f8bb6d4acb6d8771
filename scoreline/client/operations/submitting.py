"""Submitting jobs."""

from __future__ import annotations

import re
from typing import Any, Unpack

from scoreline.client.errors import InvalidRequest
from scoreline.client.exchange.bodies import Body, JsonBody, PackedLines
from scoreline.client.exchange.flow import Flow, Request
from scoreline.client.exchange.sending import Service, idempotency, send
from scoreline.client.job_objects import DryRun, Job
from scoreline.client.methods import checked
from scoreline.client.operations.scoring import check_items, fields_of, remembered
from scoreline.client.options import Items, Priority, Query, ScoreJobOptions, ScoreOptions, StreamedItems
from scoreline.client.tables import Asked


@checked
def submit(
    service: Service,
    query: Query,
    items: Items,
    *,
    idempotency_key: str | None = None,
    **options: Unpack[ScoreJobOptions],
) -> Flow[Job]:
    """Submit a job. Once this returns, the job survives the crash of any process of the service.

    idempotency_key: makes it safe to submit again after an error: the same key and the same job make one job. The
    client makes one for its own repetitions.

    >>> job = client.submit("Review: ", ["A lovely room."], labels=[" positive", " negative"])
    >>> job = client.wait(job)
    >>> job.status
    'succeeded'
    """
    body = fields_of(locals())
    asked = remembered(items, options)
    return (yield from submitted(service, JsonBody(body), idempotency_key, asked))


def upload(
    service: Service,
    query: Query,
    items: StreamedItems,
    *,
    idempotency_key: str | None = None,
    **options: Unpack[ScoreJobOptions],
) -> Flow[Job]:
    """:meth:`submit` for a large job: items are sent as the iterable yields them, packed, in bounded memory.

    Nothing is submitted if the iterable raises. What was sent is kept, packed, in memory or in a temporary file, so
    that the upload can be repeated if the connection breaks off.
    idempotency_key: as that of :meth:`submit`.

    >>> job = client.upload("Review: ", (f"Room {n} was lovely." for n in range(2_000)), labels=[" positive"])
    >>> job.total_items
    2000
    """
    first = fields_of(locals(), "items")
    asked = remembered(items, options)
    lines: Any = items  # A column need not name itself iterable.
    return (yield from submitted(service, PackedLines(first, lines), idempotency_key, asked))


def submitted(
    service: Service, body: Body, key: str | None, asked: Asked, *, wants_computed: bool = False
) -> Flow[Job]:
    """Submit a job, which remembers what the client knows of its request.

    wants_computed: use no scores that are kept.
    """
    headers = {**idempotency(key), **({"Cache-Control": "no-cache"} if wants_computed else {})}
    request = Request("POST", "/v1/jobs", lambda raw: Job.read(raw, asked), headers=headers, body=body)
    try:
        return (yield from send(service, request))
    except InvalidRequest as error:
        raise _about_items(error) from None


def _about_items(error: InvalidRequest) -> InvalidRequest:
    """Return the error of an upload without the number of the line, which the caller has never seen.

    The service counts lines from 1, and the first has the options. Items are counted from 0.
    """
    named = re.match(r"line (\d+)(:?) ", error.message)
    if named is None:
        return error
    item, rest = f"items[{int(named[1]) - 2}]", error.message[named.end() :]
    message = rest if int(named[1]) == 1 or item in rest else f"{item}{named[2]} {rest}"
    found = type(error)(error.code, message, error.status, param=error.param, request_id=error.request_id)
    found.param = found.param or (item if int(named[1]) > 1 else None)
    found.is_final = error.is_final
    return found


def dry_run(
    service: Service,
    query: Query,
    items: Items,
    *,
    priority: Priority | None = None,
    **options: Unpack[ScoreOptions],
) -> Flow[DryRun]:
    """Return what a job would take, without submitting it: tokens, algorithm, time, and what it would wait for.

    priority: that of the job.

    >>> client.dry_run("Review: ", ["A lovely room.", "The soup was cold."], labels=[" positive"]).total_items
    2
    """
    body = fields_of(locals()) | {"dry_run": True}
    check_items(items)
    request = Request("POST", "/v1/jobs", DryRun.read, body=JsonBody(body))
    return (yield from send(service, request))
