"""The scoring loop: claim a batch, score it, commit its scores, and begin again.

The loop learns only from SQL what to do; the bell only says when to look. A batch that is not interactive can be
preempted between two of its steps: the loop then claims a second batch, of interactive work, and scores it before the
first batch goes on. A long batch of interactive work can be preempted by short calls of other tenants in the same way.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Protocol

import numpy as np
import structlog

from bell.interfaces import WorkerBell
from checkpoints.card import ModelCard
from jobs.queue.homes import Settler
from jobs.queue.lease import abandon, release
from jobs.store.database import Database, StorageUnavailable
from jobs.store.provenance import Provenance
from jobs.store.records import Claim
from scoring.layout import AdapterError, ChunkWork, GroupWork, Head, Rows, ScoredChunk
from scoring.work import work_of_prefixes, work_of_rows
from telemetry.tracing import Tracer
from workers.engine_loop.claimer import AHEAD_SECONDS, RING_SECONDS, Claimed, Claimer, LoopTiming
from workers.engine_loop.garbage import GarbageCollector
from workers.engine_loop.lease_renewal import LeaseRenewal, LeaseRenewals
from workers.engine_loop.measuring.batch_trace import BatchTrace, batch_trace
from workers.engine_loop.measuring.metrics import BatchOutcome, WorkerMetrics
from workers.engine_loop.measuring.phases import BatchPhases
from workers.engine_loop.measuring.throughput import Throughput
from workers.engine_loop.poll_gate import PollGate
from workers.engine_loop.provenance import ProvenanceRecorder
from workers.engine_loop.repeated_items import RepeatedItems
from workers.engine_loop.score_committer import ScoreCommitter
from workers.engine_loop.watchdog import Watchdog

SCORING_FAILED = "scoring it failed"  # the message that the owner of a job gets; the log has the details

log = structlog.stdlib.get_logger("worker")


class ScoringEngine(Protocol):
    """What the loop needs of an engine: see :mod:`model.engine`."""

    def score(
        self,
        groups: Sequence[GroupWork],
        on_step: Callable[[], None],
        on_phase: Callable[[str, float], None] | None = None,
    ) -> Iterator[ScoredChunk]:
        """Yield each chunk once it is scored. Call ``on_step`` after each step; it raises an error to end the work.

        on_phase: called with the phase and the seconds of each part of the work, for traces.
        """


class EngineBrokenError(Exception):
    """The engine fails at any work. A new process may be able to score again."""


class _InterruptedError(Exception):
    """The scoring of a batch ends early: the worker is stopping, or the batch was taken away."""


class _PreemptionError(Exception):
    """Work between two steps failed in a way that ends the loop. The preempted batch is not to blame."""

    def __init__(self, reason: Exception) -> None:
        self.reason = reason


def _do_nothing() -> None:
    pass


class ScoringLoop:
    """Scores work that a worker of ``card`` can score. :meth:`wake` and :meth:`stop` may be called from any thread."""

    def __init__(
        self,
        database: Database,
        bell: WorkerBell,
        engine: ScoringEngine,
        watchdog: Watchdog,
        timing: LoopTiming,
        *,
        worker_id: str,
        card: ModelCard,
        metrics: WorkerMetrics | None = None,
        provenance: Provenance | None = None,
        tracer: Tracer | None = None,
        stopping: threading.Event | None = None,
        beside: Callable[[], Sequence[ScoringLoop]] = lambda: (),
        provenance_id: int | None = None,
        claims_ahead: bool = False,
    ) -> None:
        """provenance: of all scores, without the algorithms, which each chunk names; None if nothing is recorded.
        provenance_id: see WorkerRecord.

        tracer: None for no traces. stopping: what several loops of a process share. beside: returns the loops of other
        models in this process, whose interactive work is scored between the steps of a batch, too. claims_ahead:
        whether the next batch is claimed before the end of the present one. Loops that take turns must not: what they
        have claimed would wait for the turns of others.
        """
        self._database = database
        self._bell = bell
        self.engine: ScoringEngine | None = engine  # None: nothing may be scored now
        self._watchdog = watchdog
        self._timing = timing
        self._worker_id = worker_id
        self._card = card
        self._metrics = metrics or WorkerMetrics()
        self._tracer = tracer
        self._throughput = Throughput()
        self._garbage = GarbageCollector()
        self._leases = LeaseRenewals(database)
        self._settler = Settler(database, worker_id)
        self._provenances = ProvenanceRecorder(database, provenance, is_exact=provenance_id is not None)
        self._repeated = RepeatedItems(provenance_id)
        self._claimer = Claimer(
            database, worker_id, card, timing, self._throughput, self._leases, provenance_id, self._repeated
        )
        self._claims_ahead = claims_ahead
        self._woken = threading.Event()
        self._beside = beside
        self._rung = False  # whether somebody has rung since the loop looked for work; a gate may take the event
        self.stopping = stopping or threading.Event()

    def wake(self) -> None:
        """Look for work now."""
        self._rung = True
        self._woken.set()

    def stop(self) -> None:
        """Stop after the present engine step. Scores are committed; chunks without scores are given back."""
        self.stopping.set()
        self._woken.set()

    @property
    def tokens_per_second(self) -> float | None:
        """How fast this worker scores; None before anything was measured."""
        return self._throughput.measured_rate

    @property
    def expects_more(self) -> bool:
        """Whether the last claim left work, or somebody has rung since."""
        return self._claimer.work_left or self._rung

    def run(self) -> None:
        """Score until stopped. Raises EngineBrokenError. A loop runs once."""
        with closing(self):
            while not self.stopping.is_set():
                if self.turn():
                    if not self.expects_more:
                        # Work that has come since would have rung. Whoever has an answer may call again now, and a
                        # query would take the processors from that call.
                        self._woken.wait(min(RING_SECONDS, self._timing.poll_seconds))
                elif not self.stopping.is_set():
                    self._garbage.collect_idle()
                    self._woken.wait(self._claimer.idle_seconds())

    def close(self) -> None:
        """End what goes on beside the loop, and give back what was claimed ahead."""
        ahead = self._claimer.close()
        if ahead is not None:
            with self._leases.until_end(ahead.lease):
                self._end(ahead.batch, BatchOutcome.GIVEN_BACK, None)
        self._leases.close()

    def turn(self) -> bool:
        """Claim a batch and score it. Return whether there was one. Raises EngineBrokenError."""
        woken, self._rung = self._rung, False
        self._woken.clear()
        if self.stopping.is_set():
            return False
        found = self._claimer.next(woken=woken)
        if found is None:
            return False
        claimed = found.batch
        if self._claimer.work_left:
            self._bell.ring(self._card.name)  # another worker may score the rest
        with self._garbage.paused():
            preemption = self._preemption_by_others(claimed) if claimed.interactive else self._preemption()
            self._work_on(found, preemption)
        return True

    def take_interactive(self) -> bool:
        """Claim and score interactive work alone, between two steps of other work. Return whether there was any."""
        claimed = self._claimer.interactive()
        if claimed is not None:
            self._work_on(claimed, self._preemption_by_others(claimed.batch))
        return claimed is not None

    def _preemption(self) -> Callable[[], None]:
        """Return what a batch calls between its steps, to have interactive work scored there."""
        gate = PollGate(self._woken, self._timing.poll_seconds)

        def preempt() -> None:
            ahead = self._claimer.urgent_ahead()
            if ahead is not None:
                self._work_on(ahead, self._preemption_by_others(ahead.batch))
            # While the database is away, a poll could take longer than many steps.
            if self.stopping.is_set() or self._database.outages.is_away or not gate.due():
                return
            taken = [loop.take_interactive() for loop in (self, *self._beside())]
            if any(taken):
                gate.poll_again()  # there may be more interactive work

        return preempt

    def _preemption_by_others(self, batch: Claim) -> Callable[[], None]:
        """Return what an interactive batch calls between its steps, to have short work of other tenants scored there.

        One tenant's long call would otherwise keep the calls of all others waiting. While the batch is scored, each
        tenant can have as much work done as the tenant with the most work in the batch.
        """
        done = Counter(batch.tokens)
        most = max(done.values(), default=0)
        if done.total() <= self._claimer.short_budget:
            return _do_nothing
        gate = PollGate(self._woken, self._timing.poll_seconds, after_first=batch.work_left)

        def preempt() -> None:
            if self.stopping.is_set() or self._database.outages.is_away or not gate.due():
                return
            claimed = self._claimer.short(most, [tenant for tenant, tokens in done.items() if tokens >= most])
            if claimed is not None:
                gate.poll_again()
                done.update(claimed.batch.tokens)
                self._work_on(claimed, _do_nothing)

        return preempt

    def _work_on(self, found: Claimed, between_steps: Callable[[], None]) -> None:
        """Score a batch and commit its scores, then give back what is left of it.

        Raises EngineBrokenError, or the error that ended work between two steps. Both end the loop.
        """
        claimed, claimed_at = found.batch, found.at
        with (
            self._leases.until_end(found.lease) as lease,
            batch_trace(self._tracer, claimed, claimed_at, self._worker_id) as trace,
        ):
            phases = BatchPhases(self._metrics, claimed, claimed_at, trace)
            try:
                outcome, reason = self._process(claimed, lease, phases, between_steps)
            except Exception:
                self._end(claimed, BatchOutcome.LOST if lease.lost else BatchOutcome.GIVEN_BACK, trace)
                raise
            self._end(claimed, outcome, trace, reason)

    def _process(
        self, claimed: Claim, lease: LeaseRenewal, phases: BatchPhases, between_steps: Callable[[], None]
    ) -> tuple[BatchOutcome, str]:
        """Score a batch and commit its scores. Return the outcome of both, and why it failed, if it did.

        Raises EngineBrokenError, and whatever ended the work between two steps.
        """
        committer = ScoreCommitter(
            self._database, self._bell, claimed, lease, self.stopping, self._provenances, self._repeated, phases
        )
        with self._watchdog.armed(), committer:
            try:
                self._score(claimed, lease, committer, phases, between_steps)
                scoring = BatchOutcome.FINISHED
            except _InterruptedError:
                scoring = BatchOutcome.GIVEN_BACK
            except _PreemptionError as error:
                raise error.reason from error.reason.__cause__
            except AdapterError as error:
                log.warning("an adapter can't be served", batch_id=claimed.batch_id, reason=str(error))
                return BatchOutcome.FAILED, str(error)
            except Exception:
                log.exception("the engine failed", batch_id=claimed.batch_id, chunks=claimed.chunk_ids)
                scoring = BatchOutcome.FAILED
        if scoring is BatchOutcome.FAILED and not self._engine_works():
            raise EngineBrokenError("the engine fails at anything")
        if scoring is BatchOutcome.FAILED or committer.failed:
            return BatchOutcome.FAILED, SCORING_FAILED
        if lease.lost:
            return BatchOutcome.LOST, ""
        return BatchOutcome.GIVEN_BACK if committer.gave_up else scoring, ""

    def _score(
        self,
        claimed: Claim,
        lease: LeaseRenewal,
        committer: ScoreCommitter,
        phases: BatchPhases,
        between_steps: Callable[[], None],
    ) -> None:
        """Score a batch, and hand its chunks to the committer.

        Raises _InterruptedError, _PreemptionError, or any error of the engine.
        """
        seconds_between = 0.0
        is_settled = not claimed.durable  # Calls are left to nobody, and wait for no statement more.

        def on_step() -> None:
            nonlocal seconds_between, is_settled
            self._watchdog.feed()
            committer.flush()
            stopped_at = time.monotonic()
            if ahead_at is not None and stopped_at >= ahead_at:
                self._claimer.claim_ahead()
            if not is_settled:
                is_settled = True
                with suppress(StorageUnavailable):
                    self._settler.settle(claimed.shared_prefixes)
            try:
                between_steps()
            except Exception as error:
                raise _PreemptionError(error) from error
            seconds_between += time.monotonic() - stopped_at
            if self.stopping.is_set():
                log.info("stopping in mid-batch: the rest is given back", batch_id=claimed.batch_id)
                raise _InterruptedError
            if lease.lost:
                log.warning("dropping a lost batch", batch_id=claimed.batch_id)
                raise _InterruptedError

        started = time.monotonic()
        ahead_at: float | None = None
        if self._claims_ahead and not claimed.interactive:
            ahead_at = started + sum(claimed.tokens.values()) / self._throughput.tokens_per_second - AHEAD_SECONDS
        cached_tokens: dict[int, int] = {}
        of_rows = 0  # work, counted while steps run and not between two batches
        in_groups = {chunk.id: (chunk, len(group.prefix)) for group in claimed.groups for chunk in group.chunks}
        chunks = len(claimed.chunk_ids)
        assert self.engine is not None
        for scored in self.engine.score(claimed.groups, on_step, phases.on_engine_phase):
            cached_tokens[scored.id] = scored.cached_tokens
            chunk, prefix = in_groups[scored.id]
            of_rows += work_of_rows(chunk.rows, chunk.continuations, prefix)
            committer.put(scored)
            if len(cached_tokens) == chunks:
                # Whoever waits for the scores does not wait for what is measured and logged behind them.
                stopped_at = time.monotonic()
                committer.complete()
                seconds_between += time.monotonic() - stopped_at
        computed = of_rows + work_of_prefixes(claimed.groups, cached_tokens)
        self._record(claimed, computed, time.monotonic() - started - seconds_between)

    def _record(self, claimed: Claim, computed: int, seconds: float) -> None:
        """Measure and log the work on a batch that was scored to its end."""
        rows = [chunk.rows for group in claimed.groups for chunk in group.chunks]
        items = sum(map(len, rows))
        self._throughput.record(computed, seconds)
        self._metrics.count_scored(items, computed, seconds)
        log.info(
            "scored",
            groups=len(claimed.groups),
            chunks=len(rows),
            items=items,
            tokens=sum(int(of_chunk.sequence_lengths.sum()) for of_chunk in rows),
            computed=computed,
            seconds=round(seconds, 3),
            interactive=claimed.interactive,
        )

    def _engine_works(self) -> bool:
        """Return whether the engine can score the smallest possible work.

        If it can't, the failed batch is not to blame, and the worker must end: with a broken device, it would make one
        job after another fail.
        """
        chunk = ChunkWork(0, Rows.pack([[0]], [1]), (0,), Head.LOGPROBS)
        smallest = [GroupWork("check", np.zeros(1, np.int32), (chunk,))]
        try:
            with self._watchdog.armed():
                assert self.engine is not None
                return len(list(self.engine.score(smallest, _do_nothing))) == 1
        except Exception:
            log.exception("the engine fails at the smallest work, too")
            return False

    def _end(self, claimed: Claim, outcome: BatchOutcome, trace: BatchTrace | None, reason: str = "") -> None:
        """Count the batch, and have its unfinished chunks wait again. reason: why it failed."""
        self._metrics.count_batch(outcome)
        if trace is not None:
            trace.end(outcome.value)
        if outcome is BatchOutcome.FINISHED:
            return
        try:
            if outcome is BatchOutcome.FAILED:
                returned = abandon(self._database, claimed.batch_id, reason)
            else:
                returned = release(self._database, claimed.batch_id)
        except StorageUnavailable as error:
            # The chunks wait again once their lease has run out.
            log.warning("could not give a batch back", batch_id=claimed.batch_id, error=str(error))
            return
        if returned.job_ids:
            self._bell.announce(returned.job_ids)
        if returned.waiting:
            self._bell.ring(self._card.name)
