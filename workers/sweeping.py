"""Sweeps periodically. Any process may sweep: it returns the batches of lost workers and expires jobs."""

from __future__ import annotations

from bell.interfaces import Bell, tell
from jobs.invariant_watch import Watch
from jobs.queue.sweep import sweep
from jobs.store.database import Database
from workers.periodic import PeriodicTask

JITTER = 0.25  # of the interval


def start_sweeping(database: Database, bell: Bell, seconds: float) -> PeriodicTask:
    """Sweep every so many seconds in a thread, ring and announce what changed, and check the invariants."""
    watch = Watch(database)

    def sweep_once() -> None:
        swept = sweep(database)
        tell(bell, swept.models, swept.job_ids)
        watch.after_sweep()

    return PeriodicTask("sweeping", seconds, sweep_once, jitter=JITTER)
