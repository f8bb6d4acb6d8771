"""Batches: files of requests, which are answered by files."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from scoreline.client.batch_objects import Batch, Endpoint, File
from scoreline.client.batch_results import BatchResult, number_of_line
from scoreline.client.errors import BatchCancelled, BatchEnded, BatchExpired, BatchFailed, Conflict
from scoreline.client.exchange.bodies import SPOOL_BYTES, FormFile, JsonBody, encode_json
from scoreline.client.exchange.flow import Flow, Give, Iteration, Request, Sleep
from scoreline.client.exchange.sending import Service, idempotency, listed, send
from scoreline.client.job_objects import Delivery
from scoreline.client.operations.files import FileOrId, Lines
from scoreline.client.operations.jobs import deliveries_at, redelivered
from scoreline.client.operations.scoring import given
from scoreline.client.operations.waiting import read_until, timed_out
from scoreline.client.progress import shown
from scoreline.client.tables import NOTHING_ASKED, Asked, index_of

POLL_SECONDS = (0.2, 5.0)
"""How often a batch is looked at: first so often, then more and more rarely, and at last so rarely."""

PAGE_BATCHES = 100
"""The batches of the largest page of a list."""

BatchOrId = Batch | str


def batch_path(batch: BatchOrId, rest: str = "") -> str:
    """Return the path of a batch."""
    return f"/v1/batches/{quote(batch if isinstance(batch, str) else batch.id, safe='')}{rest}"


def batch(
    service: Service,
    requests: Mapping[str, Mapping[str, object]] | Iterable[tuple[str, Mapping[str, object]]],
    *,
    endpoint: Endpoint = "/v1/score",
    completion_window: str = "24h",
    metadata: Mapping[str, str] | None = None,
    webhook: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Flow[Batch]:
    """Have many requests answered: write them to a file, upload it, and create a batch of it.

    requests: the body of each request by its ``custom_id``, as a mapping or as pairs, which are read one at a time. A
    body has the fields that ``endpoint`` takes: ``{"query": ..., "items": ..., "labels": ...}`` for ``/v1/score``,
    ``{"query": ..., "items": ...}`` for ``/v1/likelihood``, ``{"query": ..., "documents": ...}`` for ``/v1/rerank``.
    The other options are those of :meth:`create_batch`.

    >>> batch = client.batch({
    ...     "hotel": {"query": "Review: ", "items": ["A lovely room."], "labels": [" positive"]},
    ...     "empty": {"query": "", "items": ["A lovely room."], "labels": [" positive"]},
    ... })
    >>> for result in client.batch_results(client.wait_batch(batch)):
    ...     print(result.custom_id, result.error.code if result.error else "was scored")
    hotel was scored
    empty empty_query
    """
    pairs: Iterable[tuple[str, Mapping[str, object]]]
    pairs = requests.items() if isinstance(requests, Mapping) else requests
    key = idempotency(idempotency_key)["Idempotency-Key"]
    asked: dict[int, Asked] = {}
    with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as file:
        for number, (custom_id, body) in enumerate(pairs):
            if (index := index_of(body.get("documents" if endpoint == "/v1/rerank" else "items"))) is not None:
                asked[number] = Asked(index=index)
            line = {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}
            file.write(encode_json(line) + b"\n")
        file.seek(0)
        form = FormFile(file, "requests.jsonl", {"purpose": "batch"})
        headers = idempotency(f"{key}-file")  # The keys of files and of batches are one space.
        sent = yield from send(service, Request("POST", "/v1/files", File.read, headers=headers, body=form))
    created = yield from create_batch(
        service,
        sent,
        endpoint=endpoint,
        completion_window=completion_window,
        metadata=metadata,
        webhook=webhook,
        idempotency_key=key,
    )
    return dataclasses.replace(created, asked=asked)


def create_batch(
    service: Service,
    file: FileOrId,
    *,
    endpoint: Endpoint = "/v1/score",
    completion_window: str = "24h",
    metadata: Mapping[str, str] | None = None,
    webhook: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Flow[Batch]:
    """Have the service answer the requests in an uploaded file. Once this returns, the batch is stored.

    endpoint: the path to which all its lines are requests. completion_window: such as ``"90m"`` or ``"24h"``; lines
    that are not scored after this time are given up. metadata: at most 16 texts of your own. webhook: what is called at
    the end: ``{"url": ..., "events": [...]}``. idempotency_key: makes it safe to create the batch again after an error.
    """
    body = {
        "input_file_id": file if isinstance(file, str) else file.id,
        "endpoint": endpoint,
        "completion_window": completion_window,
        "metadata": metadata,
        "webhook": webhook,
    }
    headers = idempotency(idempotency_key)
    request = Request("POST", "/v1/batches", Batch.read, headers=headers, body=JsonBody(given(body)))
    return (yield from send(service, request))


def reading(batch: BatchOrId) -> Callable[[Mapping[str, Any]], Batch]:
    """Return what reads an answer about a batch. What a batch remembers of its lines goes on to the answer."""
    asked = None if isinstance(batch, str) else batch.asked
    return lambda raw: Batch.read(raw, asked)


def get_batch(service: Service, batch: BatchOrId) -> Flow[Batch]:
    """Return a batch in its present state."""
    return (yield from send(service, Request("GET", batch_path(batch), reading(batch))))


def batches(service: Service, *, after: str | None = None, page_batches: int = PAGE_BATCHES) -> Iteration[Batch]:
    """Yield batches, the newest first. The list is read page by page.

    after: the id of a batch: begin behind it. page_batches: batches to read at a time.
    """
    yield from listed(service, "/v1/batches", Batch.read, {"limit": page_batches}, after)


def cancel_batch(service: Service, batch: BatchOrId) -> Flow[Batch]:
    """Cancel a batch. What was scored before is in its output file. A batch that has ended is not changed."""
    return (yield from send(service, Request("POST", batch_path(batch, "/cancel"), reading(batch))))


def delete_batch(service: Service, batch: BatchOrId) -> Flow[None]:
    """Delete a batch with its files, its jobs and their scores. One that has not ended is cancelled first."""
    yield from send(service, Request("DELETE", batch_path(batch), lambda _: None, gone_is_done=True))


def wait_batch(
    service: Service,
    batch: BatchOrId,
    timeout: float | None = None,
    *,
    progress: Callable[[Batch], object] | None = None,
    bar: bool = False,
) -> Flow[Batch]:
    """Wait for a batch to be completed and return it. A restart of the service meanwhile does no harm.

    Lines that failed do not make a batch fail: :meth:`batch_results` has their errors. Raises BatchFailed,
    BatchCancelled or BatchExpired where it ends otherwise; their ``batch`` is the batch. Raises TimedOut, which is a
    TimeoutError, after ``timeout`` seconds; None: never.

    progress: called with the batch each time it is looked at. bar: show a bar on standard error.
    """
    batch_id = batch if isinstance(batch, str) else batch.id
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = POLL_SECONDS[0]
    request = Request("GET", batch_path(batch), reading(batch))
    with shown(progress, batch_id if bar else None) as show:
        while True:
            found = yield from read_until(service, request, deadline, batch_id)
            if show is not None:
                show(found)
            if found.ended:
                break
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise timed_out(f"{batch_id} is still {found.status} after {timeout:g} s")
            yield from Sleep(pause if left is None else min(pause, left))
            pause = min(2 * pause, POLL_SECONDS[1])
    if found.status != "completed":
        raise _ended_without_completion(found)
    return found


def _ended_without_completion(batch: Batch) -> BatchEnded:
    error: BatchEnded
    if batch.status == "failed":
        error = BatchFailed("batch_failed", f"{batch.id} failed: {'; '.join(batch.errors) or 'no reason is known'}")
    elif batch.status == "cancelled":
        error = BatchCancelled("batch_cancelled", f"{batch.id} was cancelled")
    else:
        message = f"{batch.id} has expired: {batch.completed_lines} of {batch.total_items} lines were answered in time"
        error = BatchExpired("batch_expired", message)
    error.batch = batch
    return error


def batch_results(service: Service, batch: BatchOrId) -> Iteration[BatchResult]:
    """Yield the result of each request of a batch that has ended, in the order of its file.

    The output file and the error file are read side by side, a little at a time, so memory stays small. Raises Conflict
    for a batch that has not ended.
    """
    found = batch if isinstance(batch, Batch) and batch.ended else (yield from get_batch(service, batch))
    if not found.ended:
        message = f"{found.id} is still {found.status}, so it has no results: wait_batch() waits for its end"
        raise Conflict("batch_not_finished", message)
    files = [Lines(service, file) for file in (found.output_file_id, found.error_file_id) if file is not None]
    heads: list[tuple[int, dict[str, Any], Lines]] = []
    waiting = files
    while True:
        for lines in waiting:
            if (line := (yield from lines.next())) is not None:
                raw = json.loads(line)
                heads.append((number_of_line(raw), raw, lines))
        if not heads:
            return
        first = min(heads, key=lambda head: head[0])
        heads.remove(first)
        yield Give(BatchResult.read(first[1], found.asked.get(first[0], NOTHING_ASKED)))
        waiting = [first[2]]


def batch_deliveries(service: Service, batch: BatchOrId) -> Flow[list[Delivery]]:
    """Return what was sent, or is to be sent, to a batch's webhook: nothing before the batch has ended."""
    return (yield from deliveries_at(service, batch_path(batch, "/deliveries")))


def redeliver_batch(service: Service, batch: BatchOrId, delivery_id: str) -> Flow[Delivery]:
    """Send a delivery of a batch again now, whatever its state."""
    return (yield from redelivered(service, batch_path(batch, "/deliveries"), delivery_id))
