"""What streams of events follow: the states of jobs and batches, and scores, each read once for all streams."""

from __future__ import annotations

import math
from dataclasses import dataclass

from api.caching import CachedLookup
from api.events.batch_progress import BatchState, read_batch_states
from api.events.job_progress import MAX_PARTS, JobState, ScorePart, read_part, read_states
from api.store import Store
from api.waiting.following import Following
from jobs.queue.read import Progress
from settings.api import ApiSettings


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Streams:
    """What the streams of a process share."""

    api: ApiSettings
    jobs: Following[JobState]
    batches: Following[BatchState]
    score_parts: CachedLookup[tuple[Progress, int], ScorePart]  # of a job, from an item on

    @classmethod
    def make(cls, store: Store, api: ApiSettings) -> Streams:
        """Make what streams follow, inside the event loop that uses it."""
        db, sql = store.database, store.threads.sql

        async def read_score_part(behind: tuple[Progress, int]) -> ScorePart:
            job, offset = behind
            return await store.of(job.tenant, read_part, job.id, offset)

        return cls(
            api=api,
            jobs=Following(lambda job_ids: sql(read_states, db, job_ids), api.waiter_poll_seconds),
            batches=Following(lambda ids: sql(read_batch_states, db, ids), api.waiter_poll_seconds),
            score_parts=CachedLookup(read_score_part, math.inf, most=MAX_PARTS),
        )

    def stop(self) -> None:
        """End all streams, because the process shuts down."""
        self.jobs.stop()
        self.batches.stop()
