"""Run the listeners of a bell in threads, and record what they hear."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bell.interfaces import EndedJobsListener, RingListener
from tests.services import wait_until


class Heard:
    """What was heard so far. ``rings`` may be appended to from any thread."""

    def __init__(self) -> None:
        self.rings: list[str] = []
        self.ended: list[str] = []
        self.results: dict[str, str] = {}

    def ring(self) -> None:
        self.rings.append("ring")

    def end(self, job_id: str, result: str | None) -> None:
        self.ended.append(job_id)
        if result is not None:
            self.results[job_id] = result


@contextmanager
def listening(listener: RingListener) -> Iterator[threading.Event]:
    """Run a ring listener in a thread. Yields an event that is set when ``on_start`` is called."""
    started = threading.Event()
    thread = threading.Thread(target=listener.run, args=(started.set,), daemon=True)
    thread.start()
    try:
        yield started
    finally:
        listener.stop()
        thread.join(15)
        assert not thread.is_alive(), "the listener did not stop"


@contextmanager
def noticing(notices: EndedJobsListener, heard: Heard) -> Iterator[None]:
    """Run a listener for ended jobs in a thread with an event loop of its own."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(notices.listen(heard.end))

    def run() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        finally:
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
        thread.join(15)
        assert not thread.is_alive(), "the notices did not stop"


__all__ = ["Heard", "listening", "noticing", "wait_until"]
