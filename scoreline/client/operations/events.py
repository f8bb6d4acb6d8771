"""Following jobs and batches by server-sent events."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from scoreline.client.batch_objects import Batch, BatchStatus
from scoreline.client.errors import Unreachable
from scoreline.client.exchange.flow import Close, Give, Iteration, Next, Reading, Request, Sleep
from scoreline.client.exchange.sending import Repetitions, Service, opened
from scoreline.client.job_objects import Job, JobStatus
from scoreline.client.operations.batches import BatchOrId, batch_path
from scoreline.client.operations.batches import reading as batch_reading
from scoreline.client.operations.jobs import JobOrId, job_path, reading
from scoreline.client.results import ItemLikelihood, ItemScores

T = TypeVar("T")

SILENCE_SECONDS = 60.0
"""The service sends a sign of life every 15 seconds. After this time without any, the connection counts as lost."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The status of a job, or the number of its scored items, has changed."""

    id: str  # what to give as last_event_id to go on behind this event
    status: JobStatus  # how far the job has come
    total_items: int  # how many items it has
    scored_items: int  # how many of them are scored


@dataclass(frozen=True, slots=True)
class JobScores:
    """Scores are there. They come in the order of the items, each once."""

    id: str  # what to give as last_event_id to go on behind this event
    items: list[ItemScores]  # empty for a job of likelihoods
    likelihoods: list[ItemLikelihood]  # the same of such a job; empty for others


@dataclass(frozen=True, slots=True)
class JobEnd:
    """A job has ended. This is the last event."""

    id: str  # what to give as last_event_id to get nothing again
    job: Job | None  # None if the job was deleted


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The status of a batch, or the number of its written lines, has changed."""

    id: str  # what to give as last_event_id to go on behind this event
    status: BatchStatus  # how far the batch has come
    total_items: int  # lines
    completed_lines: int  # lines that were answered
    failed_lines: int  # lines that have an error instead


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """A batch has ended. This is the last event."""

    id: str  # what to give as last_event_id to get nothing again
    batch: Batch | None  # None if the batch was deleted


JobEvent = JobProgress | JobScores | JobEnd
BatchEvent = BatchProgress | BatchEnd


def events(
    service: Service, job: JobOrId, *, scores: bool = False, last_event_id: str | None = None
) -> Iteration[JobEvent]:
    """Yield what happens to a job until it ends: JobProgress, JobScores if asked for, and at last JobEnd.

    A break of the connection or a restart of the service is not seen: the client goes on behind the last event.

    scores: also yield scores as they come, in the order of the items. last_event_id: the ``id`` of an event that was
    seen before: begin behind it.

    >>> job = client.submit("Review: ", ["A lovely room."], labels=[" positive"])
    >>> seen = [type(event).__name__ for event in client.events(job, scores=True)]
    >>> "JobScores" in seen, seen[-1]
    (True, 'JobEnd')
    """
    params = {"scores": "true"} if scores else {}
    read = functools.partial(_job_event, reading(job))
    found: Iteration[JobEvent] = _followed(service, job_path(job, "/events"), params, last_event_id, read)
    yield from found


def batch_events(service: Service, batch: BatchOrId, *, last_event_id: str | None = None) -> Iteration[BatchEvent]:
    """Yield what happens to a batch until it ends: BatchProgress, and at last BatchEnd. See :meth:`events`."""
    read = functools.partial(_batch_event, batch_reading(batch))
    found: Iteration[BatchEvent] = _followed(service, batch_path(batch, "/events"), {}, last_event_id, read)
    yield from found


def _followed(
    service: Service,
    path: str,
    params: Mapping[str, str],
    last_event_id: str | None,
    read: Callable[[str, str, Any], T | None],
) -> Iteration[T]:
    repetitions: Repetitions | None = None  # since the last event
    while True:
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        request: Request[Any] = Request("GET", path, params=params, headers=headers)
        stream = yield from opened(service, request, Reading.EVENTS, silence=SILENCE_SECONDS)
        if stream.status == 204:  # The last event was seen before.
            return
        failure = Unreachable("unreachable", f"{service.url} ends the events of {path} without a last one")
        try:
            while (sent := (yield from Next(stream))) is not None:
                if not sent.data:  # The service says how long to wait before connecting again.
                    continue
                repetitions, last_event_id = None, sent.id
                event = read(sent.event, sent.id, json.loads(sent.data))
                if event is not None:
                    yield Give(event)
                if sent.event == "end":
                    return
        except Unreachable as error:
            failure = error
        yield from Close(stream)
        repetitions = repetitions or Repetitions(service.window(patient=True))
        pause = repetitions.pause_after(failure)
        if pause is None:
            raise failure
        yield from Sleep(pause)


def _job_event(read: Callable[[Mapping[str, Any]], Job], name: str, event_id: str, data: Any) -> JobEvent | None:
    if name == "progress":
        progress = data["progress"]
        return JobProgress(event_id, data["status"], progress["total_items"], progress["scored_items"])
    if name == "scores":
        return JobScores(
            event_id,
            [ItemScores.read(line) for line in data["data"] if "scores" in line],
            [ItemLikelihood.read(line) for line in data["data"] if "logprob" in line],
        )
    if name == "end":
        return JobEnd(event_id, None if data.get("deleted") else read(data))
    return None  # A later version may have further events.


def _batch_event(read: Callable[[Mapping[str, Any]], Batch], name: str, event_id: str, data: Any) -> BatchEvent | None:
    if name == "progress":
        counts = data["request_counts"]
        return BatchProgress(event_id, data["status"], counts["total"], counts["completed"], counts["failed"])
    if name == "end":
        return BatchEnd(event_id, None if data.get("deleted") else read(data))
    return None
