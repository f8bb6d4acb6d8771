"""Checking the invariants of the store after sweeps, about once a minute, and logging violations once."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from jobs.invariants import Violation, find_violations
from jobs.store.database import Database

EVERY_SECONDS = 60.0  # between two checks of one process; violations last, and every process that sweeps checks

log = structlog.stdlib.get_logger("jobs")


class Watch:
    """Checks the invariants now and then, and logs violations when they appear and disappear. Not thread-safe."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._next = clock()
        self.violations: tuple[Violation, ...] | None = None  # found by the last check; None before the first

    def after_sweep(self) -> None:
        """Check if it is time to. Only after a sweep is nothing overdue. Raises StorageUnavailable."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + EVERY_SECONDS
        found = tuple(find_violations(self._database, full=False))
        before = {violation.check.name for violation in self.violations or ()}
        for violation in found:
            if violation.check.name not in before:
                log.error(
                    "an invariant does not hold; scoreline check tells more",
                    check=violation.check.name,
                    rule=violation.check.says,
                    examples=list(violation.examples),
                )
        for name in sorted(before - {violation.check.name for violation in found}):
            log.info("an invariant holds again, as far as was looked", check=name)
        self.violations = found
