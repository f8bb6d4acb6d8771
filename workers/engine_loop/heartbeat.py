"""Being known: the front end takes a model for served while a worker of it has been seen lately."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from types import TracebackType

import structlog

from jobs.queue.worker_registry import register, touch, unregister
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import WorkerRecord
from workers.periodic import Repeating

TOUCH_SECONDS = 5.0
RETRY_SECONDS = 2.0

log = structlog.stdlib.get_logger("worker")


def new_worker_id() -> str:
    """An id no other worker has, that says where it runs."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def host_of(worker_id: str) -> str:
    """The host in an id of :func:`new_worker_id`. It may hold dashes itself."""
    return worker_id.rsplit("-", 2)[0]


class Presence:
    """A worker's row in the store: there from :meth:`make_known` to leaving the context, and kept fresh in between.

    rate: how fast it scores, in tokens per second, if that is known yet.
    """

    def __init__(self, database: Database, worker: WorkerRecord, rate: Callable[[], float | None]) -> None:
        self._database = database
        self._worker = worker
        self._rate = rate
        self._touching: Repeating | None = None

    def make_known(self, stopping: threading.Event) -> bool:
        """Register as soon as the store is there with a schema that will do. False once ``stopping``, without it."""
        while not stopping.is_set():
            try:
                self._database.check()
                register(self._database, self._worker)
            except StorageUnavailable as error:
                log.warning("waiting for the database", error=str(error))
                stopping.wait(RETRY_SECONDS)
            else:
                self._touching = Repeating("touching", TOUCH_SECONDS, self._touch)
                return True
        return False

    def __enter__(self) -> Presence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Forget the worker. If the store is away, the row goes stale by itself."""
        if self._touching is None:
            return
        self._touching.close()
        try:
            unregister(self._database, self._worker.id)
        except StorageUnavailable as error:
            log.warning("could not unregister", error=str(error))

    def _touch(self) -> None:
        if not touch(self._database, self._worker.id, self._rate()):
            register(self._database, self._worker)
