"""Registers a worker and keeps its row fresh. The API takes a model for served if a worker of it was seen lately."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable

import structlog

from jobs.queue.worker_registry import register, touch, unregister
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import WorkerRecord
from workers.database_outage import wait_for_database
from workers.periodic import PeriodicTask

HEARTBEAT_SECONDS = 5.0  # between two updates of the worker's row, at most
HEARTBEATS = 4  # while a worker counts as live without a further one

log = structlog.stdlib.get_logger("worker")


def new_worker_id() -> str:
    """Return a unique id, ``<host>-<process>-<random>``."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def host_of(worker_id: str) -> str:
    """Return the host part of an id from :func:`new_worker_id`. The host's name may contain dashes."""
    return worker_id.rsplit("-", 2)[0]


class Heartbeat:
    """Holds a worker's row in the store from :meth:`register` to the end of its context, and keeps it fresh.

    rate: returns how fast the worker scores, in tokens per second, or None if that is not measured yet. ratio: the same
    for measured over estimated seconds.
    """

    def __init__(
        self,
        database: Database,
        worker: WorkerRecord,
        rate: Callable[[], float | None],
        ratio: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._database = database
        self._worker = worker
        self._rate = rate
        self._ratio = ratio
        self._touching: PeriodicTask | None = None
        self._writing = threading.Lock()  # held while the row is written
        self._left = False

    def register(self, stopping: threading.Event) -> bool:
        """Register once the database is there with the right schema. Return False if ``stopping`` is set before."""
        if not wait_for_database(self._database, stopping, log, lambda: register(self._database, self._worker)):
            return False
        seconds = min(HEARTBEAT_SECONDS, self._database.settings.worker_fresh_seconds / HEARTBEATS)
        self._touching = PeriodicTask("touching", seconds, self._touch)
        return True

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *_: object) -> None:
        """Unregister the worker. If the database is away, the row becomes stale by itself."""
        if self._touching is None:
            return
        self._touching.close()
        with self._writing:  # A heartbeat that is under way would find no row, and register the worker again.
            self._left = True
            try:
                unregister(self._database, self._worker.id)
            except StorageUnavailable as error:
                log.warning("could not unregister", error=str(error))

    def _touch(self) -> None:
        with self._writing:
            if not self._left and not touch(self._database, self._worker.id, self._rate(), self._ratio()):
                register(self._database, self._worker)
