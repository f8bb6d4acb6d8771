"""Server-sent events, as the HTML standard has them. A client that connects again sends the last id that it got."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

MEDIA_TYPE = "text/event-stream"

END = "end"
"""The id of the last event. A client that comes back with it is told to stop."""

RETRY = b"retry: 2000\n\n"
"""After how many milliseconds a browser connects again."""

HEARTBEAT = b": the stream is alive\n\n"
"""A comment, which clients drop."""

HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # Otherwise nginx would collect events before it passes them on.
}


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Its data is JSON in one line."""

    name: str
    id: str
    data: bytes

    def encode(self) -> bytes:
        """Return the event as it is sent."""
        return b"event: %b\nid: %b\ndata: %b\n\n" % (self.name.encode(), self.id.encode(), self.data)


class EventStream(StreamingResponse):
    """A response of events. Whoever makes the events notices that the client has gone, so no task waits for that."""

    def __init__(self, events: AsyncIterator[bytes], following: AbstractContextManager[object]) -> None:
        """following: what the stream holds until its end, whether or not it ever begins."""
        super().__init__(events, media_type=MEDIA_TYPE, headers=HEADERS)
        self._following = following

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._following:
            await self.stream_response(send)


class Heartbeats:
    """When the next sign of life of a stream is due: some seconds after anything was last sent."""

    def __init__(self, every_seconds: float) -> None:
        self._every_seconds = every_seconds
        self._loop = asyncio.get_running_loop()
        self.sent()

    def sent(self) -> None:
        """Note that something was sent."""
        self._sent_at = self._loop.time()

    @property
    def seconds_left(self) -> float:
        """How long it is until one is due; 0 or less if one is due now."""
        return self._sent_at + self._every_seconds - self._loop.time()
