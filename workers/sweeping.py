"""Sweeping: what lost workers and deadlines leave behind is put right by any process that happens to look."""

from __future__ import annotations

from bell.ringing import Bell
from jobs.database import Database
from jobs.sweep import sweep
from jobs.watch import Watch
from workers.repeating import Repeating

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
