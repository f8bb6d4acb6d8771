"""``GET /v1/jobs/{id}/events``: follow a job by server-sent events."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api.answers.event_stream import END, Event
from api.budget import Kind, counts_as
from api.events.job_progress import JobState
from api.events.state_events import LastEventId, event_responses, follow_state, invalid_event_id
from api.events.streams import Streams
from api.principal import WithReadScope
from api.request_id import BrokenOffError
from api.requests.ids import checked_job_id
from api.routes.jobs import MAX_OFFSET
from api.service import StreamsOf
from api.waiting.departure import Departure
from jobs.store.database import StorageUnavailable
from jobs.tenancy.ownership import job_not_found
from scoring.error_codes import ErrorCode, RequestError

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


class _Place:
    """What a client has seen: so many items were scored, and the scores of all items before the next one."""

    def __init__(self, streams: Streams, last_event_id: str | None) -> None:
        """last_event_id: that of the last event that the client got. Raises RequestError."""
        self._streams = streams
        self._scored_items: int | None = None  # None: it has seen nothing
        self._next_item = 0
        if last_event_id:
            found = _ID.fullmatch(last_event_id)
            if found is None:
                raise invalid_event_id()
            self._scored_items, self._next_item = int(found[1]), int(found[2])
            if max(self._scored_items, self._next_item) > MAX_OFFSET:
                raise invalid_event_id()

    def has_seen(self, state: JobState) -> bool:
        # Before the first item is scored, the status may have changed, of which the place says nothing.
        return 0 < state.progress.scored_items == self._scored_items

    def see(self, state: JobState) -> str:
        self._scored_items = state.progress.scored_items
        return self._id

    async def scores(self, state: JobState, departure: Departure) -> AsyncIterator[Event]:
        """Yield the scores behind the place, as far as they are there. Raises BrokenOffError."""
        while not departure.has_happened:
            try:
                # Other streams may want the same. What was read for the same progress holds everything that it counts.
                part = await self._streams.score_parts.get((state.progress, self._next_item))
            except (RequestError, StorageUnavailable) as error:
                raise BrokenOffError(str(error)) from error
            self._next_item = part.next_item
            if part.data is not None:
                yield Event("scores", self._id, part.data)
            if part.is_last:
                return

    @property
    def _id(self) -> str:
        return f"{self._scored_items or 0}-{self._next_item}"


@router.get(
    "/v1/jobs/{job_id}/events",
    dependencies=[Depends(counts_as(Kind.STREAM))],
    response_class=Response,
    responses=event_responses(
        ("progress", "scores", "end"),
        "`progress`, `scores` if asked for, and at last `end` with the job object",
        EXAMPLE,
        ErrorCode.JOB_NOT_FOUND,
    ),
)
async def follow(
    request: Request,
    job_id: str,
    streams: StreamsOf,
    principal: WithReadScope,
    scores: Annotated[
        bool, Query(description="also send scores, in the order of the items, as they are there")
    ] = False,
    last_event_id: LastEventId = None,
) -> Response:
    """Follow a job by server-sent events, from any place on.

    A stream ends with the event `end`, or without it after an hour or when the server stops; then connect again with
    `Last-Event-ID`, as browsers do by themselves. Progress that a slow client has not read in time is skipped. Scores
    are never skipped.
    """
    job_id = checked_job_id(job_id)
    place = None if last_event_id == END else _Place(streams, last_event_id)
    return await follow_state(
        request,
        streams.api,
        principal,
        streams.jobs,
        job_id,
        place,
        {"id": job_id, "object": "scoring.job", "deleted": True},
        job_not_found,
        place.scores if place is not None and scores else None,
    )
