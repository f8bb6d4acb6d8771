"""How long the phases of jobs take, measured while a worker scores and commits a batch: for metrics and for traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

from jobs.store.records import Claim, Finished
from scoring.layout import ScoredChunk
from scoring.options import Priority
from workers.engine_loop.measuring.batch_trace import BatchTrace
from workers.engine_loop.measuring.metrics import Phase, WorkerMetrics


class BatchPhases:
    """The phases of the jobs of one batch.

    The engine's thread calls :meth:`scored`, and the thread that commits calls :meth:`committed` for the same chunks
    later. claimed_at: when the claim began, in monotonic seconds. trace: None if none of the jobs is traced.
    """

    def __init__(
        self, metrics: WorkerMetrics, claimed: Claim, claimed_at: float, trace: BatchTrace | None = None
    ) -> None:
        self._metrics = metrics
        self._trace = trace
        self._claimed_at = claimed_at
        self._job_of = {chunk_id: job for job in claimed.jobs for chunk_id in job.chunk_ids}
        self._begun: set[str] = set()  # jobs of which a chunk is scored
        self._scored_at: dict[int, float] = {}

    @property
    def on_engine_phase(self) -> Callable[[str, float], None] | None:
        """What the engine calls after each part of its work; None if nobody wants to know."""
        return None if self._trace is None else self._trace.step

    def committing(self, chunks: int) -> AbstractContextManager[None]:
        """Return what lasts as long as a commit of so many chunks."""
        return nullcontext() if self._trace is None else self._trace.commit(chunks)

    def scored(self, chunk_id: int) -> None:
        """Record that a chunk is scored."""
        now = self._scored_at[chunk_id] = time.monotonic()
        job = self._job_of[chunk_id]
        if job.id not in self._begun:
            self._begun.add(job.id)
            self._metrics.observe_phase(Phase.CLAIM_TO_FIRST_SCORE, job.priority, now - self._claimed_at)

    def committed(self, chunks: Iterable[ScoredChunk], finished: Finished) -> None:
        """Record that the scores of chunks are committed. finished: the jobs that this has ended."""
        now = time.monotonic()
        longest: dict[Priority, float] = {}
        for chunk in chunks:
            priority = self._job_of[chunk.id].priority
            longest[priority] = max(longest.get(priority, 0.0), now - self._scored_at.pop(chunk.id))
        for priority, seconds in longest.items():
            self._metrics.observe_phase(Phase.SCORE_TO_COMMIT, priority, seconds)
        for job in finished.succeeded:
            self._metrics.observe_phase(Phase.ACCEPT_TO_CLAIM, job.priority, job.started_at - job.created_at)
            self._metrics.observe_phase(Phase.ACCEPT_TO_END, job.priority, job.finished_at - job.created_at)
