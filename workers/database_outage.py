"""What a worker's process does while the database can't be used when it starts: it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

from structlog.stdlib import BoundLogger

from jobs.outages import LATER_SCHEMA
from jobs.store.database import Database, StorageUnavailable

RETRY_SECONDS = 2.0


def wait_for_database(
    database: Database, stopping: threading.Event, log: BoundLogger, action: Callable[[], None] = lambda: None
) -> bool:
    """Wait until the database has this version's schema and can be written to, and then do ``action``.

    The action is repeated in an outage. Returns False if ``stopping`` was set first. The log of the database says why.
    """
    waits = False
    while not stopping.is_set():
        try:
            is_later = database.check_use()
            action()
        except StorageUnavailable:
            if not waits:
                log.warning("waiting for the database")
            waits = True
            stopping.wait(RETRY_SECONDS)
        else:
            if is_later:
                log.warning(LATER_SCHEMA)
            return True
    return False
