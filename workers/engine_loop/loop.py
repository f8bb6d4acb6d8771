"""The scoring loop: claim, score, finish, again. SQL alone tells it what to do; the bell only tells it when to look.

Between two steps of a batch that nobody waits for, interactive work is let in: a batch of its own within the other.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import structlog

from bell.interfaces import Bell
from checkpoints.card import ModelCard
from jobs.queue.claim import claim
from jobs.queue.lease import abandon, release
from jobs.queue.read import has_waiting
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import Claim, Returned
from scoring.layout import ChunkWork, GroupWork, Head, Rows, Scored
from scoring.work import work_done
from workers.engine_loop.garbage import Garbage
from workers.engine_loop.lease_renewal import Lease
from workers.engine_loop.metrics import Outcome, WorkerMetrics
from workers.engine_loop.poll_gate import Looks
from workers.engine_loop.score_committer import Finishing
from workers.engine_loop.throughput import Throughput
from workers.engine_loop.watchdog import Progress

SCORING_FAILED = "scoring it failed"
"""What the owner of a job is told; the log has the details."""

LET_IN_SHARE = 0.25
"""Of a claim's seconds, what is let in at a time: the batch around it goes on by a step at least before the next."""

log = structlog.stdlib.get_logger("worker")


class ScoringEngine(Protocol):
    """What the loop asks of an engine: see :mod:`model.engine`."""

    def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[Scored]:
        """Yield each chunk once it is scored; call ``on_step`` after each step, which may raise to end the work."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much a claim takes, in estimated seconds, and how often an idle worker looks for work, in seconds."""

    claim_seconds: float
    poll_seconds: float


class EngineBrokenError(Exception):
    """The engine is of no more use: only a new process has a chance."""


class _StoppingError(Exception):
    """The worker is being stopped, and has come to the end of an engine step."""


class _BatchLostError(Exception):
    """The batch being scored is another's by now."""


class _LetInError(Exception):
    """What was let in between two steps ended the loop: no fault of the batch around it. The cause says why."""


def _nothing() -> None:
    pass


class ScoringLoop:
    """Works until stopped on what a worker of ``card`` can score.

    :meth:`wake` and :meth:`stop` may be called from any thread.
    """

    def __init__(
        self,
        database: Database,
        bell: Bell,
        engine: ScoringEngine,
        progress: Progress,
        pace: Pace,
        *,
        worker_id: str,
        card: ModelCard,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self._database = database
        self._bell = bell
        self._engine = engine
        self._progress = progress
        self._pace = pace
        self._worker_id = worker_id
        self._card = card
        self._metrics = metrics or WorkerMetrics()
        self._throughput = Throughput()
        self._garbage = Garbage()
        self._woken = threading.Event()
        self._database_away = False
        self.stopping = threading.Event()

    def wake(self) -> None:
        """Say that there may be work."""
        self._woken.set()

    def stop(self) -> None:
        """End after the present engine step: what is scored is finished, the rest is given back."""
        self.stopping.set()
        self._woken.set()

    @property
    def tokens_per_second(self) -> float | None:
        """How fast it scores; None before anything was measured."""
        return self._throughput.measured_rate

    def run(self) -> None:
        """Score until stopped. Raises EngineBrokenError."""
        while True:
            self._woken.clear()
            if self.stopping.is_set():
                return
            claimed_at = time.monotonic()
            claimed = self._claim()
            if claimed is None:
                self._garbage.idle()
                self._woken.wait(self._pace.poll_seconds)
            else:
                self._ring_for_the_rest()
                with self._garbage.kept():
                    self._work_on(claimed, claimed_at, _nothing if claimed.interactive else self._letting_in())

    def _letting_in(self) -> Callable[[], None]:
        """What to do between the steps of a batch to have interactive work scored there."""
        looks = Looks(self._woken, self._pace.poll_seconds)

        def let_in() -> None:
            # While the database is away, a look could last longer than many steps.
            if self.stopping.is_set() or self._database_away or not looks.due():
                return
            claimed_at = time.monotonic()
            claimed = self._claim(interactive_only=True)
            if claimed is not None:
                looks.again()  # there may be more of it
                self._work_on(claimed, claimed_at, _nothing)

        return let_in

    def _claim(self, *, interactive_only: bool = False) -> Claim | None:
        budget = self._throughput.budget(self._pace.claim_seconds * (LET_IN_SHARE if interactive_only else 1.0))
        claimed = None
        try:
            # A claim that finds nothing costs more than to see that, and on SQLite waits for whoever writes.
            if not interactive_only or has_waiting(self._database, self._card, interactive_only=True):
                claimed = claim(self._database, self._worker_id, self._card, budget, interactive_only=interactive_only)
        except StorageUnavailable as error:
            if not self._database_away:
                log.warning("the database is away; looking for work until it is back", error=str(error))
            self._database_away = True
            return None
        if self._database_away:
            log.info("the database is back")
        self._database_away = False
        return claimed

    def _ring_for_the_rest(self) -> None:
        """Ring if a claim left work behind: someone else can begin with it.

        Work that this worker can't take does not count: it would be rung for again and again.
        """
        with contextlib.suppress(StorageUnavailable):
            if has_waiting(self._database, self._card):
                self._bell.ring(self._card.name)

    def _work_on(self, claimed: Claim, claimed_at: float, between_steps: Callable[[], None]) -> None:
        unfinished = True
        failed = False
        ended_by: BaseException | None = None
        with Lease(self._database, claimed.batch_id, claimed_at) as lease:
            finishing = Finishing(self._database, self._bell, claimed.batch_id, lease, self.stopping)
            with self._progress.expected(), finishing:
                try:
                    self._score(claimed, lease, finishing, between_steps)
                    unfinished = False
                except _StoppingError:
                    log.info("stopping in mid-batch: the rest is given back", batch_id=claimed.batch_id)
                except _BatchLostError:
                    log.warning("dropping a lost batch", batch_id=claimed.batch_id)
                except _LetInError as error:
                    ended_by = error.__cause__
                except Exception:
                    failed = True
                    log.exception("the engine failed", batch_id=claimed.batch_id, chunks=claimed.chunk_ids)
            if failed and not self._engine_works():
                ended_by = EngineBrokenError("the engine fails at anything")
            if ended_by is None and (failed or finishing.failed):
                outcome = Outcome.FAILED
            elif lease.lost:
                outcome = Outcome.LOST
            elif ended_by is not None or unfinished or finishing.gave_up:
                outcome = Outcome.GIVEN_BACK
            else:
                outcome = Outcome.FINISHED
            self._metrics.ended(outcome)
            if outcome is Outcome.FAILED:
                self._give_back(claimed, lambda: abandon(self._database, claimed.batch_id, SCORING_FAILED))
            elif outcome is not Outcome.FINISHED:
                self._give_back(claimed, lambda: release(self._database, claimed.batch_id))
            if ended_by is not None:
                raise ended_by

    def _score(self, claimed: Claim, lease: Lease, finishing: Finishing, between_steps: Callable[[], None]) -> None:
        """Score a batch and hand its chunks on to be finished.

        Raises _StoppingError, _BatchLostError or _LetInError.
        """
        seconds_between = 0.0

        def on_step() -> None:
            nonlocal seconds_between
            self._progress.beat()
            stopped_at = time.monotonic()
            try:
                between_steps()
            except Exception as error:
                raise _LetInError from error
            seconds_between += time.monotonic() - stopped_at
            if self.stopping.is_set():
                raise _StoppingError
            if lease.lost:
                raise _BatchLostError

        started = time.monotonic()
        cached_tokens: dict[int, int] = {}
        for scored in self._engine.score(claimed.groups, on_step):
            cached_tokens[scored.id] = scored.cached_tokens
            finishing.put(scored)
        seconds = time.monotonic() - started - seconds_between
        rows = [chunk.rows for group in claimed.groups for chunk in group.chunks]
        computed = work_done(claimed.groups, cached_tokens)
        self._throughput.measured(computed, seconds)
        items = sum(map(len, rows))
        self._metrics.scored(items, computed, seconds)
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
        """Whether it was the batch's fault. If not, a broken device would fail one job of the backlog after another."""
        chunk = ChunkWork(0, Rows.pack([[0]], [1]), (0,), Head.LOGPROBS)
        smallest = [GroupWork("check", np.zeros(1, np.int32), (chunk,))]
        try:
            with self._progress.expected():
                return len(list(self._engine.score(smallest, _nothing))) == 1
        except Exception:
            log.exception("the engine fails at the smallest work, too")
            return False

    def _give_back(self, claimed: Claim, give_back: Callable[[], Returned]) -> None:
        """Have the unfinished chunks wait again; if the store is away, the end of their lease does it."""
        try:
            returned = give_back()
        except StorageUnavailable as error:
            log.warning("could not give a batch back", batch_id=claimed.batch_id, error=str(error))
            return
        if returned.job_ids:
            self._bell.announce(returned.job_ids)
        if returned.waiting:
            self._bell.ring(self._card.name)
