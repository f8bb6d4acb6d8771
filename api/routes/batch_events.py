"""``GET /v1/batches/{id}/events``: follow a batch by server-sent events."""

from __future__ import annotations

import re

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from api.answers.event_stream import END
from api.budget import Kind, counts_as
from api.events.batch_progress import BatchState
from api.events.state_events import LastEventId, event_responses, follow_state, invalid_event_id
from api.principal import WithReadScope
from api.requests.ids import checked_batch_id
from api.service import StreamsOf
from jobs.file_batches.reading import batch_not_found
from jobs.file_batches.tables import BatchStatus
from scoring.error_codes import ErrorCode

router = APIRouter(tags=["files and batches"])

EXAMPLE = """\
event: progress
id: in_progress-256-0
data: {"id":"batch_...","object":"batch.progress","status":"in_progress",\
"request_counts":{"total":512,"completed":256,"failed":0}}

event: end
id: end
data: {"id":"batch_...","object":"batch","status":"completed"}

"""

_ID = re.compile(rf"({'|'.join(BatchStatus)})-[0-9]{{1,10}}-[0-9]{{1,10}}")


class _Place:
    """The progress that a client has seen last."""

    def __init__(self, last_event_id: str | None) -> None:
        """last_event_id: that of the last event that the client got. Raises RequestError."""
        if last_event_id and not _ID.fullmatch(last_event_id):
            raise invalid_event_id()
        self._id = last_event_id or None

    def has_seen(self, state: BatchState) -> bool:
        return self._id == _id_of(state)

    def see(self, state: BatchState) -> str:
        self._id = _id_of(state)
        return self._id


def _id_of(state: BatchState) -> str:
    one = state.progress
    return f"{one.status}-{one.completed_lines}-{one.failed_lines}"


@router.get(
    "/v1/batches/{batch_id}/events",
    dependencies=[Depends(counts_as(Kind.STREAM))],
    response_class=Response,
    responses=event_responses(
        ("progress", "end"), "`progress`, and at last `end` with the batch object", EXAMPLE, ErrorCode.BATCH_NOT_FOUND
    ),
)
async def follow_batch(
    request: Request,
    batch_id: str,
    streams: StreamsOf,
    principal: WithReadScope,
    last_event_id: LastEventId = None,
) -> Response:
    """Follow a batch by server-sent events: its status, and how many of its lines are written.

    A stream ends with the event `end`, or without it after an hour or when the server stops; then connect again with
    `Last-Event-ID`, as browsers do by themselves. Progress that a slow client has not read in time is skipped.
    """
    batch_id = checked_batch_id(batch_id)
    return await follow_state(
        request,
        streams.api,
        principal,
        streams.batches,
        batch_id,
        None if last_event_id == END else _Place(last_event_id),
        {"id": batch_id, "object": "batch", "deleted": True},
        batch_not_found,
    )
