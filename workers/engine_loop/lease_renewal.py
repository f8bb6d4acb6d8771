"""Holding a claim: its lease is renewed for as long as it is worked on."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import structlog

from jobs.queue.lease import renew
from jobs.store.database import Database
from workers.periodic import Repeating

RENEWALS_PER_LEASE = 4

log = structlog.stdlib.get_logger("worker")


class Lease:
    """The lease of one batch, renewed in a thread from entering it to leaving it.

    claimed_at: of :func:`time.monotonic`, from before the claim was made.
    """

    def __init__(self, database: Database, batch_id: str, claimed_at: float) -> None:
        self._database = database
        self._batch_id = batch_id
        self._seconds = database.settings.lease_seconds
        self._ends_at = claimed_at + self._seconds
        self._refused = threading.Event()

    def __enter__(self) -> Lease:
        self._renewing = Repeating("renewing", self._seconds / RENEWALS_PER_LEASE, self.renew)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewing.close()

    @property
    def lost(self) -> bool:
        """Whether the batch is known to be another's: nothing that is done for it counts any more."""
        return self._refused.is_set()

    @property
    def over(self) -> bool:
        """Whether the lease is lost, or ran out for want of a renewal."""
        return self.lost or time.monotonic() > self._ends_at

    def renew(self) -> None:
        """Hold the batch for another lease from now. Raises StorageUnavailable."""
        asked_at = time.monotonic()
        if renew(self._database, self._batch_id):
            self._ends_at = asked_at + self._seconds
        else:
            self._refused.set()
            log.warning("lost a batch: its lease had run out", batch_id=self._batch_id)
