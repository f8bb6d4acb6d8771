"""Submitting jobs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Any

from scoreline.client.errors import InvalidRequest
from scoreline.client.exchange.bodies import Body, JsonBody, PackedLines
from scoreline.client.exchange.flow import Flow, Request
from scoreline.client.exchange.sending import Service, idempotency, send
from scoreline.client.job_objects import DryRun, Job, Priority
from scoreline.client.operations.scoring import (
    Column,
    Items,
    LabelNormalization,
    Labels,
    LabelScoring,
    Query,
    TextLabels,
    check_items,
    fields_of,
    remembered,
)
from scoreline.client.tables import Asked


def submit(
    service: Service,
    query: Query,
    items: Items,
    *,
    labels: TextLabels | None = None,
    label_token_ids: Labels | None = None,
    label_token_sequences: Sequence[Sequence[int]] | None = None,
    label_scoring: LabelScoring | None = None,
    label_normalization: LabelNormalization | None = None,
    apply_softmax: bool = False,
    temperature: float | None = None,
    query_template: str | None = None,
    item_template: str | None = None,
    template: str | None = None,
    instruction: str | None = None,
    item_first: bool = False,
    return_logprobs: bool = False,
    return_logits: bool = False,
    return_provenance: bool = False,
    model: str | None = None,
    metadata: Mapping[str, str] | None = None,
    priority: Priority | None = None,
    expires_in: float | None = None,
    webhook: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Flow[Job]:
    """Submit a job. Once this returns, the job survives the crash of any process of the service.

    The options up to ``model`` are those of :meth:`score`.

    metadata: at most 16 texts of your own, which are returned with the job. priority: ``"interactive"``, ``"normal"``
    or ``"bulk"``; None: normal. expires_in: seconds after which what is not scored yet is given up.
    webhook: where to be told of the job's end: ``{"url": ..., "events": [...]}``.
    idempotency_key: makes it safe to submit again after an error: the same key and the same job make one job. The
    client makes one for its own repetitions.

    >>> job = client.submit("Review: ", ["A lovely room."], labels=[" positive", " negative"])
    >>> job = client.wait(job)
    >>> job.status
    'succeeded'
    """
    body = fields_of(locals())
    asked = remembered(items, labels, label_token_ids)
    return (yield from submitted(service, JsonBody(body), idempotency_key, asked))


def upload(
    service: Service,
    query: Query,
    items: Iterable[str] | Iterable[Sequence[int]] | AsyncIterable[str] | AsyncIterable[Sequence[int]] | Column,
    *,
    labels: TextLabels | None = None,
    label_token_ids: Labels | None = None,
    label_token_sequences: Sequence[Sequence[int]] | None = None,
    label_scoring: LabelScoring | None = None,
    label_normalization: LabelNormalization | None = None,
    apply_softmax: bool = False,
    temperature: float | None = None,
    query_template: str | None = None,
    item_template: str | None = None,
    template: str | None = None,
    instruction: str | None = None,
    item_first: bool = False,
    return_logprobs: bool = False,
    return_logits: bool = False,
    return_provenance: bool = False,
    model: str | None = None,
    metadata: Mapping[str, str] | None = None,
    priority: Priority | None = None,
    expires_in: float | None = None,
    webhook: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Flow[Job]:
    """:meth:`submit` for a large job: items are sent as the iterable yields them, packed, in bounded memory.

    The options are those of :meth:`submit`. Nothing is submitted if the iterable raises. What was sent is kept, packed,
    in memory or in a temporary file, so that the upload can be repeated if the connection breaks off.

    >>> job = client.upload("Review: ", (f"Room {n} was lovely." for n in range(2_000)), labels=[" positive"])
    >>> job.total_items
    2000
    """
    first = fields_of(locals(), "items")
    asked = remembered(items, labels, label_token_ids)
    lines: Any = items  # A column need not name itself iterable.
    return (yield from submitted(service, PackedLines(first, lines), idempotency_key, asked))


def submitted(service: Service, body: Body, key: str | None, asked: Asked) -> Flow[Job]:
    """Submit a job, which remembers what the client knows of its request."""
    headers = idempotency(key)
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
    labels: TextLabels | None = None,
    label_token_ids: Labels | None = None,
    label_token_sequences: Sequence[Sequence[int]] | None = None,
    label_scoring: LabelScoring | None = None,
    label_normalization: LabelNormalization | None = None,
    apply_softmax: bool = False,
    temperature: float | None = None,
    query_template: str | None = None,
    item_template: str | None = None,
    template: str | None = None,
    instruction: str | None = None,
    item_first: bool = False,
    return_logprobs: bool = False,
    return_logits: bool = False,
    return_provenance: bool = False,
    model: str | None = None,
    priority: Priority | None = None,
) -> Flow[DryRun]:
    """Return what a job would take, without submitting it: tokens, algorithm, time, and what it would wait for.

    The options are those of :meth:`submit`.

    >>> client.dry_run("Review: ", ["A lovely room.", "The soup was cold."], labels=[" positive"]).total_items
    2
    """
    body = fields_of(locals()) | {"dry_run": True}
    check_items(items)
    request = Request("POST", "/v1/jobs", DryRun.read, body=JsonBody(body))
    return (yield from send(service, request))
