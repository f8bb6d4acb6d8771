"""Watching the invariants beside the sweeps: seldom, cheaply, and said once."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from jobs.invariants import Violation, find_violations
from jobs.store.database import Database

EVERY_SECONDS = 60.0
"""How often a process looks. What breaks a rule stays broken: no hurry, and every process that sweeps looks."""

log = structlog.stdlib.get_logger("jobs")


class Watch:
    """Looks for violations at most once in a while, and logs them as they come and go. For one thread at a time.

    violations: what the last look found; None before the first.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._next = clock()
        self.violations: tuple[Violation, ...] | None = None

    def after_sweep(self) -> None:
        """Look, if it is time to: a sweep has just put right what is overdue. Raises StorageUnavailable."""
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
