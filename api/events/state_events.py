"""The events of a stream that follows a state, such as that of a job: its progress, what else it has, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from typing import Annotated, Any, Protocol

from fastapi import Header, Request
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.event_stream import END, HEARTBEAT, MEDIA_TYPE, RETRY, Event, EventStream, Heartbeats
from api.answers.presentation import encode
from api.callers.authentication import Principal
from api.events.shown_state import P, ShownState
from api.waiting.departure import Departure, departure_of
from api.waiting.following import Followed, Following
from scoring.error_codes import ErrorCode, RequestError, invalid
from settings.api import ApiSettings


class Place(Protocol[P]):
    """What a client has seen. The ids of events name it, so that a client that comes back can say it."""

    def has_seen(self, state: ShownState[P]) -> bool:
        """Return whether the client knows this progress."""

    def see(self, state: ShownState[P]) -> str:
        """Note that the client is sent this progress. Returns the id of the event."""


Parts = Callable[[ShownState[P], Departure], AsyncIterator[Event]]
"""Yields what comes beside the progress and is there by now. Raises BrokenOffError."""


LastEventId = Annotated[
    str | None, Header(description="the id of the last event that the client got; it goes on behind it")
]
"""The type of a route's parameter that is the header."""


def event_responses(
    names: Sequence[str], description: str, example: str, *codes: ErrorCode
) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI ``responses`` of a stream of events with these names. codes: its further errors."""
    schema = {
        "description": "each event of the stream",
        "type": "object",
        "required": ["event", "data"],
        "properties": {
            "id": {"type": "string"},
            "event": {"enum": list(names)},
            "data": {"type": "string", "contentMediaType": "application/json"},
        },
    }
    return {
        200: {
            "description": f"events {description}; comments keep the connection alive",
            "content": {MEDIA_TYPE: {"schema": schema, "example": example}},
        },
        204: {"description": "the client has seen the last event; a browser does not connect again"},
        **secured(ErrorCode.INVALID_REQUEST, *codes),
    }


def invalid_event_id() -> RequestError:
    """Return the error for a ``Last-Event-ID`` that no event of the stream has."""
    message = "Last-Event-ID must be the id of an event of this stream"
    return invalid(message, "Last-Event-ID")


async def follow_state(
    request: Request,
    api: ApiSettings,
    principal: Principal,
    following: Following[ShownState[P]],
    key: str,
    place: Place[P] | None,
    deleted: dict[str, Any],
    not_found: Callable[[], RequestError],
    parts: Parts[P] | None = None,
) -> Response:
    """Answer with the events of a state. place: None if the client has seen the end. deleted: the data of the last
    event if the state has been deleted. parts: None if nothing but progress is sent.

    Raises ``not_found()`` if there is no such state, or another tenant has it, and StorageUnavailable.
    """
    departure = departure_of(request)
    with ExitStack() as stack:
        followed = stack.enter_context(following.follow(key))
        state = await followed.first(departure)
        if followed.version and (state is None or state.tenant != principal.tenant):
            raise not_found()
        if place is None:
            return Response(status_code=204)
        # From here on, the stream itself stops following.
        return EventStream(_events(api, followed, place, parts, departure, encode(deleted)), stack.pop_all())


async def _events(
    api: ApiSettings,
    followed: Followed[ShownState[P]],
    place: Place[P],
    parts: Parts[P] | None,
    departure: Departure,
    deleted: bytes,
) -> AsyncIterator[bytes]:
    """Yield events. Raises BrokenOffError if something can't be read; the client comes back for it."""
    loop = asyncio.get_running_loop()
    stop_at = loop.time() + api.max_event_stream_seconds
    heartbeats = Heartbeats(api.event_heartbeat_seconds)
    shown: bytes | None = None
    yield RETRY
    while not (departure.has_happened or followed.is_stopped or loop.time() >= stop_at):
        seen, state = followed.version, followed.state
        if state is None:
            yield Event("end", END, deleted).encode()
            return
        if state.shown != shown and (shown is not None or not place.has_seen(state)):
            yield Event("progress", place.see(state), state.shown).encode()
            heartbeats.sent()
        shown = state.shown
        if parts is not None:
            async for part in parts(state, departure):
                yield part.encode()
                heartbeats.sent()
        if state.end is not None:
            yield Event("end", END, state.end).encode()
            return
        await followed.change(seen, min(heartbeats.seconds_left, stop_at - loop.time()), departure)
        if heartbeats.seconds_left <= 0:
            yield HEARTBEAT
            heartbeats.sent()
