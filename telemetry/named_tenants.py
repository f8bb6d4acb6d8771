"""Which tenants the metrics name: a bounded number, so that the number of time series is bounded, too."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

OTHER = "other"
"""The label of all tenants that have no name in the metrics, and of a tenant that is called so."""


class NamedTenants:
    """The first tenants that come get a name, up to a number. Safe to use from threads.

    file: where processes that serve a port together agree on the names, a line each; None for a process alone.
    """

    def __init__(self, most: int, file: Path | None = None) -> None:
        self._most = most
        self._file = file
        self._names: frozenset[str] = frozenset()
        self._adding = threading.Lock()

    def label(self, tenant: str) -> str:
        """Return the tenant's name, or :data:`OTHER`."""
        if tenant in self._names:
            return tenant
        # The names never change, so once there are as many as there may be, no other is looked for.
        if tenant == OTHER or len(self._names) >= self._most:
            return OTHER
        with self._adding:
            self._names = self._with(tenant)
        return tenant if tenant in self._names else OTHER

    def _with(self, tenant: str) -> frozenset[str]:
        """Return all names, with this one if there is room for it."""
        if self._file is None:
            return self._names | {tenant} if len(self._names) < self._most else self._names
        with self._file.open("a+", encoding="utf-8") as shared:
            fcntl.flock(shared, fcntl.LOCK_EX)  # until the file is closed
            shared.seek(0)
            names = frozenset(shared.read().split("\n")) - {""}
            if tenant not in names and len(names) < self._most:
                shared.seek(0, os.SEEK_END)
                shared.write(f"{tenant}\n")
                names |= {tenant}
        return names
