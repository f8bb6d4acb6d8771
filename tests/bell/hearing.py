"""Ends of the bell, run in threads, that write down what they hear."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bell.interfaces import Listener, Notices
from tests.services import wait_until


class Heard:
    """What was heard so far. ``rings`` may be appended to from any thread."""

    def __init__(self) -> None:
        self.rings: list[str] = []
        self.ended: list[str] = []

    def ring(self) -> None:
        self.rings.append("ring")


@contextmanager
def listening(listener: Listener) -> Iterator[threading.Event]:
    """Run a worker's end in a thread; yields an event that is set once the worker was told to start."""
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
def noticing(notices: Notices, heard: Heard) -> Iterator[None]:
    """Run an API's end in an event loop of its own thread."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(notices.listen(heard.ended.append))

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
