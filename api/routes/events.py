"""``GET /v1/jobs/{id}/events``: follow a job by server-sent events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.event_stream import END, HEARTBEAT, MEDIA_TYPE, RETRY, Event, EventStream, Heartbeats
from api.answers.presentation import encode
from api.budget import Kind, place_of
from api.job_progress import JobState, ScorePart, read_part
from api.principal import WithReadScope
from api.request_id import BrokenOffError
from api.routes.jobs import checked_job_id
from api.service import Service, ServiceOf
from api.waiting.departure import Departure, departure_of
from api.waiting.following import Followed
from jobs.queue.read import Progress
from jobs.store.database import StorageUnavailable
from jobs.tenancy.ownership import job_not_found
from scoring.error_codes import ErrorCode, RequestError

EVENT_SCHEMA = {
    "description": "each event of the stream",
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": ["progress", "scores", "end"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}

router = APIRouter(tags=["jobs"])

EXAMPLE = """\
event: progress
id: 256-0
data: {"id":"job_...","status":"running","progress":{"total_items":512,"scored_items":256}}

event: end
id: end
data: {"id":"job_...","object":"scoring.job","status":"succeeded"}

"""

_ID = re.compile(r"([0-9]{1,10})-([0-9]{1,10})")


@dataclass(slots=True)
class _Place:
    """What a client has seen: so many items were scored, and the scores of all items before this one."""

    scored_items: int | None = None  # None: it has seen nothing
    next_item: int = 0

    @classmethod
    def after(cls, last_event_id: str | None) -> _Place:
        """Return the place of a client that names the last event that it got. Raises RequestError."""
        if not last_event_id:
            return cls()
        found = _ID.fullmatch(last_event_id)
        if found is None:
            message = "Last-Event-ID must be the id of an event of this stream"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, param="Last-Event-ID")
        return cls(int(found[1]), int(found[2]))

    @property
    def id(self) -> str:
        return f"{self.scored_items or 0}-{self.next_item}"


async def _is_stream(request: Request) -> None:
    place_of(request).kind = Kind.STREAM


@router.get(
    "/v1/jobs/{job_id}/events",
    dependencies=[Depends(_is_stream)],
    response_class=Response,
    responses={
        200: {
            "description": "events `progress`, `scores` if asked for, and at last `end` with the job object; comments "
            "keep the connection alive",
            "content": {MEDIA_TYPE: {"schema": EVENT_SCHEMA, "example": EXAMPLE}},
        },
        204: {"description": "the client has seen the last event; a browser does not connect again"},
        **secured(ErrorCode.INVALID_REQUEST, ErrorCode.JOB_NOT_FOUND, ErrorCode.STORAGE_UNAVAILABLE),
    },
)
async def follow(
    request: Request,
    job_id: str,
    service: ServiceOf,
    principal: WithReadScope,
    scores: Annotated[
        bool, Query(description="also send scores, in the order of the items, as they are there")
    ] = False,
    last_event_id: Annotated[
        str | None, Header(description="the id of the last event that the client got; it goes on behind it")
    ] = None,
) -> Response:
    """Follow a job by server-sent events, from any place on.

    A stream ends with the event `end`, or without it after an hour or when the server stops; then connect again with
    `Last-Event-ID`, as browsers do by themselves. Progress that a slow client has not read in time is skipped. Scores
    are never skipped.
    """
    job_id = checked_job_id(job_id)
    has_ended = last_event_id == END
    place = _Place() if has_ended else _Place.after(last_event_id)
    departure = departure_of(request)
    with ExitStack() as stack:
        followed = stack.enter_context(service.followed_jobs.follow(job_id))
        state = await followed.first(departure)
        if followed.version and (state is None or state.progress.tenant != principal.tenant):
            raise job_not_found()
        if has_ended:
            return Response(status_code=204)
        # From here on, the stream itself stops following.
        events = _events(service, followed, place, departure, job_id, with_scores=scores)
        return EventStream(events, stack.pop_all())


async def _events(
    service: Service,
    followed: Followed[JobState],
    place: _Place,
    departure: Departure,
    job_id: str,
    *,
    with_scores: bool,
) -> AsyncIterator[bytes]:
    """Yield the events of a job. Raises BrokenOffError if scores can't be read; the client comes back for them."""
    loop = asyncio.get_running_loop()
    stop_at = loop.time() + service.api.max_event_stream_seconds
    heartbeats = Heartbeats(service.api.event_heartbeat_seconds)
    shown: bytes | None = None
    yield RETRY
    while not (departure.has_happened or followed.is_stopped or loop.time() >= stop_at):
        seen, state = followed.version, followed.state
        if state is None:
            yield Event("end", END, encode({"id": job_id, "object": "scoring.job", "deleted": True})).encode()
            return
        is_news = shown is not None or place.scored_items != state.progress.scored_items
        if state.shown != shown and is_news:
            place.scored_items = state.progress.scored_items
            yield Event("progress", place.id, state.shown).encode()
            heartbeats.sent()
        shown = state.shown
        while with_scores and not departure.has_happened:
            part = await _part(service, state.progress, place.next_item)
            place.next_item = part.next_item
            if part.data is not None:
                yield Event("scores", place.id, part.data).encode()
                heartbeats.sent()
            if part.is_last:
                break
        if state.end is not None:
            yield Event("end", END, state.end).encode()
            return
        await followed.change(seen, min(heartbeats.seconds_left, stop_at - loop.time()), departure)
        if heartbeats.seconds_left <= 0:
            yield HEARTBEAT
            heartbeats.sent()


async def _part(service: Service, progress: Progress, offset: int) -> ScorePart:
    """Return the scores behind a place, which other streams may want as well.

    What was read for the same progress holds everything that this progress counts.
    """

    async def read() -> ScorePart:
        return await service.threads.sql_of(
            progress.tenant, read_part, service.database, progress.tenant, progress.id, offset
        )

    try:
        return await service.score_parts.get((progress, offset), read)
    except (RequestError, StorageUnavailable) as error:
        raise BrokenOffError(str(error)) from error
