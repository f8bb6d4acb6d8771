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
    """Call :func:`sweep_once` every so many seconds in a thread."""
    return PeriodicTask("sweeping", seconds, partial(sweep_once, database, bell, Watch(database)), jitter=JITTER)


def sweep_once(database: Database, bell: Bell, watch: Watch) -> bool:
    """Sweep, ring and announce what changed, and check the invariants unless more jobs may be past their deadline.

    Returns whether they may be.
    """
    swept = sweep(database)
    tell(bell, swept.models, swept.job_ids)
    if not swept.more:
        watch.after_sweep()
    return swept.more
