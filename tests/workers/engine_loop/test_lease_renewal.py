"""Leases are renewed again soon after an outage, and each of them by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import workers.engine_loop.lease_renewal as renewing
from jobs.queue.lease import renew
from jobs.store.database import Database, StorageUnavailable
from tests.services import wait_until
from tests.workers.conftest import Store
from workers.engine_loop.lease_renewal import LeaseRenewals

LEASE_SECONDS = 20.0


class Outage:
    """Renewals of the database, which fail for some batches until that is over."""

    def __init__(self) -> None:
        self.batches: set[str] = set()
        self.asked: list[str] = []
        self.answered: list[str] = []
        self._lock = threading.Lock()

    def renew(self, database: Database, batch_id: str) -> bool:
        with self._lock:
            self.asked.append(batch_id)
        if batch_id in self.batches:
            raise StorageUnavailable("the database is away")
        found = renew(database, batch_id)
        with self._lock:
            self.answered.append(batch_id)
        return found


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    outage = Outage()
    monkeypatch.setattr(renewing, "renew", outage.renew)
    monkeypatch.setattr(renewing, "RETRY_SECONDS", 0.05)
    return outage


@pytest.fixture
def leases(sqlite_url: str) -> Iterator[LeaseRenewals]:
    leases = LeaseRenewals(Store(sqlite_url, lease_seconds=LEASE_SECONDS).database)
    yield leases
    leases.close()


def test_a_renewal_that_failed_is_repeated_long_before_the_next_one_is_due(
    outage: Outage, leases: LeaseRenewals
) -> None:
    outage.batches.add("batch")
    due = time.monotonic() - LEASE_SECONDS / renewing.RENEWALS_PER_LEASE
    with leases.until_end(leases.begin("batch", due)):
        wait_until(lambda: len(outage.asked) > 2, "the renewal is repeated", LEASE_SECONDS / 8)
        outage.batches.clear()
        wait_until(lambda: outage.answered, "the renewal succeeds", LEASE_SECONDS / 8)


def test_a_lease_is_renewed_whatever_happens_to_another(outage: Outage, leases: LeaseRenewals) -> None:
    outage.batches.add("first")
    due = time.monotonic() - LEASE_SECONDS / renewing.RENEWALS_PER_LEASE
    with leases.until_end(leases.begin("first", due)), leases.until_end(leases.begin("second", due)):
        wait_until(lambda: "second" in outage.answered, "the other lease is renewed", LEASE_SECONDS / 8)
