"""What a bell is: "there is work" and "it is done", said quickly and never relied upon.

Work is durable in SQL before anybody rings, workers look there every few seconds, and waiting calls poll it. So a lost,
doubled or late ring costs a moment and nothing else, and no method here may fail its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

IDS_PER_NOTICE = 500
"""Job ids one message carries at most, so that a message stays far below every buffer it passes through."""


class Bell(Protocol):
    """Rings workers and tells waiting calls what has ended. Safe to use from any thread."""

    def ring(self, model: str) -> None:
        """Say that ``model`` has waiting work. Call it after the commit. Never raises; takes a second at most."""

    def announce(self, job_ids: Sequence[str]) -> None:
        """Say that these jobs reached an end. Call it after the commit. Never raises; takes a second at most."""

    def close(self) -> None:
        """Let go of connections."""


class Notices(Protocol):
    """The other end of :meth:`Bell.announce`: one subscription a process."""

    async def listen(self, on_ended: Callable[[str], None]) -> None:
        """Call ``on_ended`` with each announced job id, in the event loop, until cancelled. Reconnects by itself."""


class Listener(Protocol):
    """The other end of :meth:`Bell.ring`: how a worker hears."""

    def run(self, on_start: Callable[[], None]) -> None:
        """Listen in the calling thread until :meth:`stop`; ``on_start`` is called once, before anything is heard."""

    def stop(self) -> None:
        """Make :meth:`run` return soon. Safe to call from any thread, and before :meth:`run`."""


def in_notices(job_ids: Sequence[str]) -> Iterator[list[str]]:
    """Cut job ids into lists that fit one message each."""
    for start in range(0, len(job_ids), IDS_PER_NOTICE):
        yield list(job_ids[start : start + IDS_PER_NOTICE])
