"""Keeps the lease of each batch for as long as a worker works on the batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog

from jobs.queue.lease import renew
from jobs.store.database import Database, StorageUnavailable
from workers.periodic import PeriodicTask

RENEWALS_PER_LEASE = 4

RETRY_SECONDS = 1.0
"""How soon a lease is renewed again if the database was away: an outage that ends just before the lease loses nothing.
The thread looks so often for leases that are to be renewed.
"""

log = structlog.stdlib.get_logger("worker")


class LeaseRenewals:
    """Renews the leases of a worker's batches in one thread, which lives as long as the worker."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: list[LeaseRenewal] = []
        seconds = min(RETRY_SECONDS, database.settings.lease_seconds / RENEWALS_PER_LEASE / 2)
        self._renewing = PeriodicTask("renewing", seconds, self._renew)

    def begin(self, batch_id: str, claimed_at: float) -> LeaseRenewal:
        """Renew the lease of a batch from now on. claimed_at: on the monotonic clock. Any thread may call."""
        lease = LeaseRenewal(self._database, batch_id, claimed_at)
        self._open.append(lease)
        return lease

    @contextmanager
    def until_end(self, lease: LeaseRenewal) -> Iterator[LeaseRenewal]:
        """Renew a lease no longer than this block."""
        try:
            yield lease
        finally:
            self._open.remove(lease)

    def close(self) -> None:
        """Renew nothing any more."""
        self._renewing.close()

    def _renew(self) -> None:
        for lease in tuple(self._open):
            if not lease.is_due:
                continue
            with suppress(StorageUnavailable):
                lease.renew()


class LeaseRenewal:
    """The lease of one batch. claimed_at: on the monotonic clock."""

    def __init__(self, database: Database, batch_id: str, claimed_at: float) -> None:
        self._database = database
        self._batch_id = batch_id
        self._seconds = database.settings.lease_seconds
        self._ends_at = claimed_at + self._seconds
        self._due_at = claimed_at + self._seconds / RENEWALS_PER_LEASE
        self._refused = threading.Event()

    @property
    def lost(self) -> bool:
        """Whether a renewal was refused: the batch was taken away, and no result for it counts any more."""
        return self._refused.is_set()

    @property
    def over(self) -> bool:
        """Whether the lease is lost, or has run out because no renewal succeeded in time."""
        return self.lost or time.monotonic() > self._ends_at

    @property
    def is_due(self) -> bool:
        """Whether the lease is to be renewed now. After a renewal that failed it still is."""
        return not self.lost and time.monotonic() >= self._due_at

    def renew(self) -> None:
        """Renew the lease for its full length from now. Raises StorageUnavailable."""
        asked_at = time.monotonic()
        if renew(self._database, self._batch_id):
            self._ends_at = asked_at + self._seconds
            self._due_at = asked_at + self._seconds / RENEWALS_PER_LEASE
        else:
            self._refused.set()
            log.warning("lost a batch: its lease had run out", batch_id=self._batch_id)
