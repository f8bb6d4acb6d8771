"""What a worker's process does while the database can't be reached: it waits, and says so in its log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from structlog.stdlib import BoundLogger

from jobs.outages import LATER_SCHEMA, explain_outage
from jobs.store.database import Database, StorageUnavailable, StoreError

RETRY_SECONDS = 2.0
REPEAT = 30  # a reason that stays the same is logged at every so many attempts


def wait_for_database(
    database: Database, stopping: threading.Event, log: BoundLogger, action: Callable[[], None] = lambda: None
) -> bool:
    """Wait until the database has this version's schema, and then do ``action``, which is repeated in an outage.

    Returns False if ``stopping`` was set first.
    """
    says, attempts = "", 0
    while not stopping.is_set():
        try:
            is_later = database.check()
            action()
        except (StorageUnavailable, StoreError) as error:
            reason = explain_outage(error, database.settings)
            if reason != says or attempts % REPEAT == 0:
                log.warning("waiting for the database", error=reason)
            says, attempts = reason, attempts + 1
            stopping.wait(RETRY_SECONDS)
        else:
            if is_later:
                log.warning(LATER_SCHEMA)
            return True
    return False


class OutageLog:
    """Logs when an outage of the database begins and when it ends, however often the database is tried in between.

    Used as a context around each use of the database: it suppresses StorageUnavailable. For one thread.
    """

    def __init__(self, log: BoundLogger, event: str) -> None:
        self._log = log
        self._event = event  # logged when an outage begins
        self.is_away = False

    def __enter__(self) -> OutageLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, StorageUnavailable):
            if not self.is_away:
                self._log.warning(self._event, error=str(error))
            self.is_away = True
            return True
        if error is None and self.is_away:
            self._log.info("the database is back")
            self.is_away = False
        return False
