"""What a worker claims: as much as lasts a few seconds, less where other work waits for it, and a batch ahead."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from checkpoints.card import ModelCard
from jobs.queue.claims.claim import claim
from jobs.queue.read import has_waiting, others_wait, seconds_until_free
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import Claim
from workers.engine_loop.lease_renewal import LeaseRenewal, LeaseRenewals
from workers.engine_loop.measuring.throughput import Throughput
from workers.engine_loop.repeated_items import RepeatedItems

PREEMPTION_SHARE = 0.25  # size of a preempting claim, as a share of the size of an ordinary claim
SHORT_SHARE = 1 / 16  # the same of a claim that preempts interactive work
RING_SECONDS = 0.02  # how long a worker that has done all work waits for a ring before it looks whether one was lost

AHEAD_SECONDS = 0.5
"""About how long before the end of a batch the next one is claimed, where a device would wait for the claim. A claim of
four seconds of work takes some 50 ms."""


@dataclass(frozen=True, slots=True)
class LoopTiming:
    """How much the loop claims at a time, and how often it polls."""

    claim_seconds: float  # estimated scoring time of the work that one claim takes
    poll_seconds: float  # between two polls for work


class Claimed(NamedTuple):
    """A batch, when it was claimed on the monotonic clock, and its lease, which is being renewed."""

    batch: Claim
    at: float
    lease: LeaseRenewal


class Claimer:
    """Claims work for one loop. All methods are for its thread. provenance_id: see WorkerRecord."""

    def __init__(
        self,
        database: Database,
        worker_id: str,
        card: ModelCard,
        timing: LoopTiming,
        throughput: Throughput,
        leases: LeaseRenewals,
        provenance_id: int | None,
        repeated: RepeatedItems,
    ) -> None:
        self.work_left = False
        """Whether the last claim of a batch left work."""
        self._database = database
        self._worker_id = worker_id
        self._card = card
        self._timing = timing
        self._throughput = throughput
        self._leases = leases
        self._provenance_id = provenance_id
        self._repeated = repeated
        self._after_interactive = False  # whether that was interactive work, of which some is left
        self._found_nothing = False  # whether somebody has rung, and there was no work that it may claim
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: Future[Claimed | None] | None = None

    def next(self, *, woken: bool) -> Claimed | None:
        """Claim a batch, or return the one that was claimed ahead. woken: whether the bell has rung."""
        claimed = self._take_ahead() or self._claim(
            after_interactive=self._after_interactive, work_left=self.work_left, woken=woken
        )
        self.work_left = claimed is not None and claimed.batch.work_left
        self._after_interactive = claimed is not None and claimed.batch.interactive and self.work_left
        self._found_nothing = claimed is None and woken
        return claimed

    def claim_ahead(self) -> None:
        """Begin to claim the next batch in a thread, if work was left and none is claimed ahead."""
        if self._ahead is None and self.work_left:
            self._thread = self._thread or ThreadPoolExecutor(1, "claim ahead")
            self._ahead = self._thread.submit(self._claim, after_interactive=self._after_interactive, work_left=True)

    def urgent_ahead(self) -> Claimed | None:
        """Return the batch that was claimed ahead if it can't wait for the end of the present one.

        An error of that claim is raised when the batch is asked for.
        """
        if self._ahead is None or not self._ahead.done() or self._ahead.exception() is not None:
            return None
        claimed = self._ahead.result()
        return self._take_ahead() if claimed is not None and claimed.batch.interactive else None

    def _take_ahead(self) -> Claimed | None:
        ahead, self._ahead = self._ahead, None
        return None if ahead is None else ahead.result()

    def close(self) -> Claimed | None:
        """End, and return a batch that was claimed ahead, which has to be given back."""
        if self._thread is not None:
            self._thread.shutdown()
        has_failed = self._ahead is not None and self._ahead.exception() is not None
        return None if has_failed else self._take_ahead()

    def interactive(self) -> Claimed | None:
        """Claim interactive work alone, and less of it, to be scored between two steps of other work."""
        return self._claim(interactive_only=True)

    @property
    def short_budget(self) -> int:
        """How many tokens of work may make longer interactive work wait."""
        return self._throughput.budget(self._timing.claim_seconds * SHORT_SHARE)

    def short(self, most_tokens: int, without: Sequence[str]) -> Claimed | None:
        """Claim short interactive work, of at most so many tokens, of other tenants than these."""
        budget, claimed_at = min(most_tokens, self.short_budget), time.monotonic()
        with suppress(StorageUnavailable):
            if others_wait(self._database, self._card, self._worker_id, without, budget):
                return self._take(budget, claimed_at, without=without)
        return None

    def _take(self, budget: int, claimed_at: float, **which: Any) -> Claimed | None:
        """Claim for this worker, and hold the lease. which: keywords of :func:`jobs.queue.claims.claim.claim`."""
        batch = claim(self._database, self._worker_id, self._card, budget, provenance_id=self._provenance_id, **which)
        if batch is None:
            return None
        lease = self._leases.begin(batch.batch_id, claimed_at)
        return Claimed(self._repeated.without_scored(batch), claimed_at, lease)

    def idle_seconds(self) -> float:
        """Return for how long the loop may wait for a ring: until work that is left to another worker becomes free."""
        soon = None
        if self._found_nothing:
            with suppress(StorageUnavailable):
                soon = seconds_until_free(self._database, self._card)
        return self._timing.poll_seconds if soon is None else min(self._timing.poll_seconds, max(soon, RING_SECONDS))

    def _claim(
        self,
        *,
        interactive_only: bool = False,
        after_interactive: bool = False,
        work_left: bool = False,
        woken: bool = False,
    ) -> Claimed | None:
        """Claim work. work_left: by the last claim; woken: whether the bell has rung since."""
        budget = self._throughput.budget(self._timing.claim_seconds * (PREEMPTION_SHARE if interactive_only else 1.0))
        claimed_at = time.monotonic()
        with suppress(StorageUnavailable):
            # This query is cheaper than a claim that finds nothing: on SQLite, such a claim waits for whoever writes.
            if (
                work_left
                or woken
                or has_waiting(self._database, self._card, self._worker_id, interactive_only=interactive_only)
            ):
                return self._take(
                    budget,
                    claimed_at,
                    interactive_only=interactive_only,
                    after_interactive=after_interactive,
                    work_left=work_left,
                )
        return None
