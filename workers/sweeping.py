"""Sweeps periodically. Any process may sweep: it returns the batches of lost workers and expires jobs."""

from __future__ import annotations

from functools import partial

from bell.interfaces import Bell, tell
from jobs.invariant_watch import Watch
from jobs.queue.sweep import sweep
from jobs.store.database import Database
from workers.periodic import PeriodicTask

JITTER = 0.25  # of the interval


def start_sweeping(database: Database, bell: Bell, seconds: float) -> PeriodicTask:
    """Call :func:`sweep_all` every so many seconds in a thread."""
    return PeriodicTask("sweeping", seconds, partial(sweep_all, database, bell, Watch(database)), jitter=JITTER)


def sweep_all(database: Database, bell: Bell, watch: Watch) -> None:
    """Sweep until no job is past its deadline, ring and announce what changed, and check the invariants."""
    more = True
    while more:
        swept = sweep(database)
        tell(bell, swept.models, swept.job_ids)
        more = swept.more
    watch.after_sweep()
