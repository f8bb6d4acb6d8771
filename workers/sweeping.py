"""Sweeping: what lost workers and deadlines leave behind is put right by any process that happens to look."""

from __future__ import annotations

from bell.interfaces import Bell
from jobs.invariant_watch import Watch
from jobs.queue.sweep import sweep
from jobs.store.database import Database
from workers.periodic import Repeating

JITTER = 0.25


def keep_sweeping(database: Database, bell: Bell, seconds: float) -> Repeating:
    """Sweep every so many seconds, in a thread, tell whom it concerns, and watch the invariants. Owns no device."""
    watch = Watch(database)

    def sweep_once() -> None:
        swept = sweep(database)
        for model in swept.models:
            bell.ring(model)
        if swept.job_ids:
            bell.announce(swept.job_ids)
        watch.after_sweep()

    return Repeating("sweeping", seconds, sweep_once, jitter=JITTER)
