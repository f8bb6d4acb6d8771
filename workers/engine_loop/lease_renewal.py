"""Keeps the lease of a batch for as long as a worker works on the batch."""

from __future__ import annotations

import threading
import time

import structlog

from jobs.queue.lease import renew
from jobs.store.database import Database
from workers.periodic import PeriodicTask

RENEWALS_PER_LEASE = 4

log = structlog.stdlib.get_logger("worker")


class LeaseRenewal:
    """Renews the lease of one batch in a thread while its context is open. claimed_at: on the monotonic clock."""

    def __init__(self, database: Database, batch_id: str, claimed_at: float) -> None:
        self._database = database
        self._batch_id = batch_id
        self._seconds = database.settings.lease_seconds
        self._ends_at = claimed_at + self._seconds
        self._refused = threading.Event()

    def __enter__(self) -> LeaseRenewal:
        self._renewing = PeriodicTask("renewing", self._seconds / RENEWALS_PER_LEASE, self.renew)
        return self

    def __exit__(self, *_: object) -> None:
        self._renewing.close()

    @property
    def lost(self) -> bool:
        """Whether a renewal was refused: the batch was taken away, and no result for it counts any more."""
        return self._refused.is_set()

    @property
    def over(self) -> bool:
        """Whether the lease is lost, or has run out because no renewal succeeded in time."""
        return self.lost or time.monotonic() > self._ends_at

    def renew(self) -> None:
        """Renew the lease for its full length from now. Raises StorageUnavailable."""
        asked_at = time.monotonic()
        if renew(self._database, self._batch_id):
            self._ends_at = asked_at + self._seconds
        else:
            self._refused.set()
            log.warning("lost a batch: its lease had run out", batch_id=self._batch_id)
