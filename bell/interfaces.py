"""What a bell is: it says quickly that there is work, or that jobs have ended. Nothing relies on it.

Work is durable in SQL before anybody rings, workers look for it there every few seconds, and waiting calls poll SQL.
So a lost, repeated or late message costs a moment and nothing else, and no method here may make its caller fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

IDS_PER_MESSAGE = 500
"""Maximum number of job ids in one message, which keeps a message far below the size of every buffer it passes."""


class Bell(Protocol):
    """Rings the workers and announces which jobs have ended. Safe to use from any thread."""

    def ring(self, model: str) -> None:
        """Say that ``model`` has waiting work. Call it after the commit. Never raises; takes a second at most."""

    def announce(self, job_ids: Sequence[str]) -> None:
        """Say that these jobs have ended. Call it after the commit. Never raises; takes a second at most."""


class BellConnection(Bell, Protocol):
    """A bell with connections of its own, which its owner closes."""

    def close(self) -> None:
        """Close all connections."""


class EndedJobsListener(Protocol):
    """The receiving end of :meth:`Bell.announce`; a process has one."""

    async def listen(self, on_ended: Callable[[str], None]) -> None:
        """Call ``on_ended`` with each announced job id, in the event loop, until cancelled. Reconnects by itself."""


class RingListener(Protocol):
    """The receiving end of :meth:`Bell.ring`; a worker has one."""

    def run(self, on_start: Callable[[], None]) -> None:
        """Listen in the calling thread until :meth:`stop`. Call ``on_start`` once, before the first ring is heard."""

    def stop(self) -> None:
        """Make :meth:`run` return soon. Safe to call from any thread, and before :meth:`run`."""


def tell(bell: Bell, models: Iterable[str], ended: Sequence[str]) -> None:
    """Report the result of a sweep: ring for the models that have waiting work, and announce the jobs that ended."""
    for model in models:
        bell.ring(model)
    if ended:
        bell.announce(ended)


def split_into_messages(job_ids: Sequence[str]) -> Iterator[list[str]]:
    """Split job ids into lists of at most :data:`IDS_PER_MESSAGE`."""
    for start in range(0, len(job_ids), IDS_PER_MESSAGE):
        yield list(job_ids[start : start + IDS_PER_MESSAGE])
