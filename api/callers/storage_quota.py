"""Refuse what would have a tenant store more bytes than it may: files, jobs with their scores, and batches.

What a tenant stores is the sum of rows (:mod:`jobs.stored_bytes`), and requests share a sum for a moment. Each process
adds what it has let in since. So a tenant may exceed the quota by what other processes let in meanwhile, and by what is
being stored at the moment of the sum.

What is kept of calls, for minutes, is held to the same number of bytes apart, so that files do not stop calls.
"""

from __future__ import annotations

import random
import threading

from api.caching import ThrottledValue
from jobs.store.database import Database
from jobs.stored_bytes import StoredBytes, count_stored
from scoring.error_codes import ErrorCode, RequestError

GOOD_FOR_SECONDS, MAX_GOOD_FOR_SECONDS = 1.0, 30.0
"""How long requests share a sum. If adding up takes long, the sum is used for longer."""

RETRY_SECONDS = (30.0, 60.0)
"""The least and the greatest ``Retry-After``: somebody has to delete something."""

SETTING = "max_stored_bytes_per_tenant"


class StorageQuota:
    """How many bytes each tenant may store. Safe to use from threads."""

    def __init__(self, database: Database, most: int) -> None:
        self._database = database
        self.most = most
        self._tenants: dict[str, _OfTenant] = {}

    def take(self, tenant: str, size: int, *, is_call: bool = False) -> None:
        """Count so many further bytes. Blocks on the database, if nobody has added up lately.

        Raises RequestError REQUEST_TOO_LARGE for more than a tenant may store, QUOTA_EXCEEDED, and StorageUnavailable.
        """
        check_stored_bytes(size, self.most)
        if not self._of(tenant).take(size, self.most, is_call=is_call):
            raise self._exceeded()

    def take_at_once(self, tenant: str, size: int, *, is_call: bool) -> bool:
        """Do the same if it is known without the database that there is room. Returns whether that was so."""
        one = self._of(tenant)
        return one.is_known() and one.take(size, self.most, is_call=is_call)

    def add(self, tenant: str, size: int) -> None:
        """Count bytes that are stored already, for which there was room."""
        self._of(tenant).add(size)

    def room(self, tenant: str) -> int:
        """Return how many further bytes a tenant may store; none or fewer if it is full. Blocks on the database."""
        return self.most - self._of(tenant).kept()

    def refusal(self, tenant: str) -> RequestError | None:
        """Return the error of anything that would be stored, if the tenant is full. Blocks on the database."""
        return None if self.room(tenant) > 0 else self._exceeded()

    def _of(self, tenant: str) -> _OfTenant:
        found = self._tenants.get(tenant)
        return found if found is not None else self._tenants.setdefault(tenant, _OfTenant(self._database, tenant))

    def _exceeded(self) -> RequestError:
        message = f"{full(self.most)}; delete files, batches or jobs"
        return RequestError(
            ErrorCode.QUOTA_EXCEEDED, message, retry_after=random.uniform(*RETRY_SECONDS), limit=SETTING
        )


def check_stored_bytes(size: int, most: int) -> None:
    """Raise RequestError REQUEST_TOO_LARGE for what takes more bytes than a tenant may store."""
    if size > most:
        message = f"this would take {size} bytes to store, with all scores, and a tenant may store {most}"
        raise RequestError(ErrorCode.REQUEST_TOO_LARGE, message, limit=SETTING)


def full(most: int) -> str:
    """Say that a tenant has no room for what it wants to store."""
    return f"a tenant may store {most} bytes in files, jobs and batches, and there is no room for this"


class _OfTenant:
    """What a tenant stores, as far as this process knows."""

    def __init__(self, database: Database, tenant: str) -> None:
        self._database = database
        self._tenant = tenant
        self._added = StoredBytes(0, 0)  # since the last sum
        self._lock = threading.Lock()
        self._sum = ThrottledValue(self._count, GOOD_FOR_SECONDS, MAX_GOOD_FOR_SECONDS)

    def is_known(self) -> bool:
        return self._sum.fresh() is not None

    def kept(self) -> int:
        return self._sum.get().kept + self._added.kept

    def add(self, size: int) -> None:
        with self._lock:
            self._added = StoredBytes(self._added.kept + size, self._added.calls)

    def take(self, size: int, most: int, *, is_call: bool) -> bool:
        stored = self._sum.get()
        with self._lock:
            kept, calls = self._added.kept, self._added.calls
            if (stored.calls + calls if is_call else stored.kept + kept) + size > most:
                return False
            self._added = StoredBytes(kept, calls + size) if is_call else StoredBytes(kept + size, calls)
            return True

    def _count(self) -> StoredBytes:
        before = self._added
        stored = count_stored(self._database, self._tenant)
        with self._lock:
            self._added = StoredBytes(self._added.kept - before.kept, self._added.calls - before.calls)
        return stored
