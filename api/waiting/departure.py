"""Learn that the client of a request has gone, without a task that waits for it."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request


class Departure:
    """The departure of the client of one request, which its connection reports. For use on the event loop."""

    __slots__ = ("_resume_reading", "_tell", "has_happened")

    def __init__(self, resume_reading: Callable[[], None]) -> None:
        self.has_happened = False
        self._resume_reading = resume_reading
        self._tell: Callable[[], object] | None = None

    def watch(self, tell: Callable[[], object]) -> None:
        """Have ``tell`` called when the client goes; at once if it has gone. The body must have been read before."""
        if self.has_happened:
            tell()
            return
        self._tell = tell
        self._resume_reading()  # A connection that is not read from does not show that its client has gone.

    def unwatch(self) -> None:
        """Have nothing called any more."""
        self._tell = None

    def happen(self) -> None:
        """Say that the client has gone."""
        self.has_happened = True
        if self._tell is not None:
            self._tell()


def departure_of(request: Request) -> Departure:
    """Return the departure of a request's client, which its connection has put into the request's state."""
    departure: Departure = request.state.departure
    return departure
