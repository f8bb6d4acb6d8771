"""What a bell is: it says quickly that there is work, or that jobs have ended. Nothing relies on it.

Work is durable in SQL before anybody rings, workers look for it there every few seconds, and waiting calls poll SQL.
So a lost, repeated or late message costs a moment and nothing else, and no method here may make its caller fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

OnEnded = Callable[[str, str | None], None]
"""What hears that a job has ended: it is called with the job's id, and with its result if the notice brings it."""


class Bell(Protocol):
    """Rings the workers and announces which jobs have ended. Safe to use from any thread."""

    def ring(self, model: str) -> None:
        """Say that ``model`` has waiting work. Call it after the commit. Never raises; takes a second at most."""

    def announce(self, job_ids: Sequence[str]) -> None:
        """Say that these jobs have ended. Call it after the commit. Never raises; takes a second at most."""


class WorkerBell(Bell, Protocol):
    """A bell whose notices can bring results."""

    def announce(self, job_ids: Sequence[str], results: Mapping[str, str] | None = None) -> None:
        """Do the same, and send the results of some of the jobs, by id.

        Whoever can listen to the bell can read them, and whoever can ring it can send others. So a result must show by
        itself that a worker has made it.
        """


class BellConnection(WorkerBell, Protocol):
    """A bell with connections of its own, which its owner closes."""

    def close(self) -> None:
        """Close all connections."""


class EndedJobsListener(Protocol):
    """The receiving end of :meth:`Bell.announce`; a process has one."""

    async def listen(self, on_ended: OnEnded) -> None:
        """Call ``on_ended`` with each announced job, in the event loop, until cancelled. Reconnects by itself."""


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
