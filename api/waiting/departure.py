"""Learn that the client of a request has gone, without a task that waits for it."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request


class Departure:
    """The departure of the client of one request, which its connection reports. For use on the event loop."""

    __slots__ = ("_body_taken", "_listen", "_tell", "has_happened", "reads_body", "unread_bytes")

    def __init__(self, listen: Callable[[Departure], None], body_taken: Callable[[], None] = lambda: None) -> None:
        """listen: reads on from the connection, and drops the rest of a body that the request's route does not read.
        body_taken: counts what the connection still keeps of bodies."""
        self.has_happened = False
        self.reads_body = False  # whether the route has begun to read the request's body
        self.unread_bytes = 0  # of the body, that the connection keeps until the route takes them
        self._listen = listen
        self._body_taken = body_taken
        self._tell: Callable[[], object] | None = None

    def watch(self, tell: Callable[[], object]) -> None:
        """Have ``tell`` called when the client goes; at once if it has gone. The body must have been read before."""
        if self.has_happened:
            tell()
            return
        self._tell = tell
        self._listen(self)  # A connection that is not read from does not show that its client has gone.

    def take_body(self) -> None:
        """Note that the route has taken what came of the body."""
        self.reads_body = True
        self.unread_bytes = 0
        self._body_taken()

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
