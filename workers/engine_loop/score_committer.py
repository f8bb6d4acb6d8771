"""Commits scores in a thread beside the scoring, so that the device never waits for the database.

Chunks that are scored during a commit go into the next one. So many small jobs share a commit, and a single small job
does not wait for others. A batch whose chunks are all finished by its last step needs no thread.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

import structlog

from bell.interfaces import WorkerBell
from jobs.queue.finish import finish
from jobs.queue.reuse import NewScores
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import Claim
from scoring.layout import ScoredChunk
from workers.engine_loop.lease_renewal import LeaseRenewal
from workers.engine_loop.measuring.phases import BatchPhases
from workers.engine_loop.provenance import ProvenanceRecorder
from workers.engine_loop.repeated_items import RepeatedItems

RETRY_SECONDS = 0.5  # between two tries to commit while the database is away

log = structlog.stdlib.get_logger("worker")


class ScoreCommitter:
    """Finishes the chunks of one batch, and announces the jobs that end with them.

    While the database is away it tries again until the lease is over or ``stopping`` is set. Chunks that are not
    committed by then are scored again, by this worker or another.
    """

    def __init__(
        self,
        database: Database,
        bell: WorkerBell,
        claimed: Claim,
        lease: LeaseRenewal,
        stopping: threading.Event,
        provenances: ProvenanceRecorder,
        repeated: RepeatedItems,
        phases: BatchPhases,
    ) -> None:
        self._database = database
        self._bell = bell
        self._batch_id = claimed.batch_id
        self._durable = claimed.durable
        self._work = {chunk.id: (group, chunk) for group in claimed.groups for chunk in group.chunks}
        self._claimed = claimed
        self._lease = lease
        self._stopping = stopping
        self._provenances = provenances
        self._repeated = repeated
        self._phases = phases
        self._scored: list[ScoredChunk] = []  # what the next commit takes
        self._changed = threading.Condition()
        self._complete = False  # nothing more will be put
        self._thread: threading.Thread | None = None  # started when a step is followed by another
        self.gave_up = False  # scores were dropped: the lease was over, or the worker stopped during an outage
        self.failed = False  # scores were dropped after an unexpected error

    def __enter__(self) -> ScoreCommitter:
        return self

    def __exit__(self, *_: object) -> None:
        """Return once everything that was put is committed or given up."""
        self.complete()
        if self._thread is not None:
            self._thread.join()

    def complete(self) -> None:
        """Have what is left committed now, because nothing more will be put."""
        with self._changed:
            self._complete = True
            self._changed.notify()
        if self._thread is None:
            self._run()

    def put(self, scored: ScoredChunk) -> None:
        """Have a chunk committed after this step of the engine, or at the end if this is the last one.

        Raises ValueError if the engine has scored too many or too few items or labels.
        """
        _, chunk = self._work[scored.id]
        items, labels, found = len(chunk.rows), chunk.columns, scored.scores.logits.shape
        if found != (items, labels):
            raise ValueError(f"chunk {scored.id} has {items} items with {labels} labels, scored were {found}")
        self._phases.scored(scored.id)
        if not chunk.keep_targets and scored.token_logprobs is not None:
            scored = replace(scored, token_logprobs=None, greedy=None, top=None)
        with self._changed:
            self._scored.append(scored)

    def flush(self) -> None:
        """Have everything that was put committed while the next step runs."""
        with self._changed:
            if not self._scored:
                return
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="committing", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while scored := self._take():
                with self._phases.committing(len(scored)):
                    self._commit(scored)
        except Exception:
            self.failed = True
            log.exception("could not store scores", batch_id=self._batch_id)

    def _take(self) -> list[ScoredChunk]:
        """Wait for chunks, and return all that were put since the last call; an empty list after the last of them."""
        with self._changed:
            self._changed.wait_for(lambda: self._scored or self._complete)
            taken, self._scored = self._scored, []
        return taken

    def _commit(self, computed: list[ScoredChunk]) -> None:
        waits = False
        self._repeated.remember(self._claimed, computed)
        scored = [self._claimed.whole(chunk) for chunk in computed]
        while not self._lease.over:
            try:
                provenances = self._provenances.ids_of(scored)
                finished = finish(
                    self._database,
                    self._batch_id,
                    scored,
                    durable=self._durable,
                    provenances=provenances,
                    new_scores=self._new_scores(computed) if self._durable else None,
                )
            except StorageUnavailable:
                if not waits:
                    log.warning("could not store scores yet", chunks=len(scored), batch_id=self._batch_id)
                waits = True
                if self._stopping.wait(RETRY_SECONDS):
                    break
                continue
            if finished.job_ids:
                self._bell.announce(finished.job_ids, finished.results)
            self._phases.committed(scored, finished)
            if finished.fenced:
                # Either their jobs were cancelled meanwhile, or the batch is lost. A renewal finds out which.
                log.info("scores came too late", chunks=finished.fenced, batch_id=self._batch_id)
                with contextlib.suppress(StorageUnavailable):
                    self._lease.renew()
            return
        self.gave_up = True
        log.warning("scores were given up", chunks=len(scored), batch_id=self._batch_id)

    def _new_scores(self, computed: list[ScoredChunk]) -> dict[int, NewScores]:
        """Return what later jobs may use of these chunks. Raises StorageUnavailable."""
        found = {chunk.id: self._provenances.new_scores(*self._work[chunk.id], chunk) for chunk in computed}
        return {number: scores for number, scores in found.items() if scores is not None}
