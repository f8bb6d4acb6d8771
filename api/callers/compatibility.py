"""The handshake: what this process tokenises, a worker must be able to score.

API and workers load the tokenizer each for themselves, so a deployment that is half upgraded has two of them under one
name. Workers register what they serve; here it is held against the card of this process. Where live workers serve
something else, and none the same, work is refused before it is accepted. Without any it is taken, and waits: whatever
comes, the claim keeps it from a worker that would score it wrongly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from checkpoints.card import ModelCard, shorten
from jobs.queue.worker_registry import live_workers
from jobs.store.database import Database
from jobs.store.records import WorkerRecord
from scoring.error_codes import ErrorCode, RequestError

GOOD_FOR_SECONDS = 1.0
"""How long what was seen lets submissions pass without another query. A refusal is never from memory."""

RETRY_SECONDS = 5.0
"""What a caller is told to wait for a worker: workers register as soon as their model is loaded."""

MOST_RETRY_SECONDS = 60.0
"""The same where there has been none for long: what has been away for a while is seldom back the next moment."""

log = structlog.stdlib.get_logger("api.handshake")


@dataclass(frozen=True, slots=True)
class Standing:
    """The live workers of the model, held against this process's card.

    live: how many; matching: those without a difference; differences: lines, of the others; warnings: lines, of what
    lets work pass and may still surprise.
    """

    live: int = 0
    matching: tuple[WorkerRecord, ...] = ()
    differences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def mismatched(self) -> bool:
        """Whether there are workers and none of them could be trusted with this process's work."""
        return self.live > 0 and not self.matching

    @property
    def tokens_per_second(self) -> float | None:
        """How fast the matching workers score together; who has measured nothing yet counts like the others. None if
        nobody has.
        """
        measured = [worker.tokens_per_second for worker in self.matching if worker.tokens_per_second is not None]
        return sum(measured) / len(measured) * len(self.matching) if measured else None


class Handshake:
    """The card of this process and who serves the same. Blocks on the database; safe to use from threads."""

    def __init__(self, database: Database, card: ModelCard, fresh_seconds: float) -> None:
        self._database = database
        self._card = card
        self._fresh_seconds = fresh_seconds
        self._seen: tuple[float, Standing] | None = None
        self._without_since: float | None = None
        self._reporting = threading.Lock()
        self._reported = Standing()

    def look(self) -> Standing:
        """How it stands now; a change for better or worse is logged. Raises StorageUnavailable."""
        workers = [
            worker
            for worker in live_workers(self._database, self._fresh_seconds)
            if worker.card.name == self._card.name
        ]
        standing = compare(self._card, workers)
        now = time.monotonic()
        self._seen = (now, standing)
        self._without_since = None if standing.matching else self._without_since or now
        self._report(standing)
        return standing

    def check(self, *, waits: bool) -> Standing:
        """Raise RequestError MODEL_UNAVAILABLE unless work may be accepted now. Returns how it stands.

        waits: the work may wait for a worker where none is live. Raises StorageUnavailable.
        """
        seen = self._seen
        if seen is not None and time.monotonic() - seen[0] < GOOD_FOR_SECONDS and not self._refusal(seen[1], waits):
            return seen[1]
        standing = self.look()
        if refusal := self._refusal(standing, waits):
            raise RequestError(ErrorCode.MODEL_UNAVAILABLE, refusal, retry_after=self._retry_seconds())
        return standing

    def _retry_seconds(self) -> float:
        """What a caller is told to wait: as long as it has lasted already, within bounds."""
        since = self._without_since
        lasted = 0.0 if since is None else time.monotonic() - since
        return min(MOST_RETRY_SECONDS, max(RETRY_SECONDS, lasted))

    def _refusal(self, standing: Standing, waits: bool) -> str | None:
        if standing.mismatched:
            return f"the workers of {self._card.name} serve something else than this server; see /readyz"
        if standing.live == 0 and not waits:
            return f"no worker serves {self._card.name} right now; jobs sent to /v1/jobs wait for one"
        return None

    def _report(self, standing: Standing) -> None:
        """Log what has changed since the last report. How many workers there are is no change."""
        with self._reporting:
            before, self._reported = self._reported, standing
        if standing.mismatched and (not before.mismatched or before.differences != standing.differences):
            log.error(
                "the workers serve something else: work is refused",
                model=self._card.name,
                differences=list(standing.differences),
            )
        if before.mismatched and not standing.mismatched:
            log.info("no worker stands in the way any more", model=self._card.name, live_workers=standing.live)
        if standing.warnings and standing.warnings != before.warnings:
            log.warning("the workers differ", model=self._card.name, warnings=list(standing.warnings))


def compare(card: ModelCard, workers: Iterable[WorkerRecord]) -> Standing:
    """Hold the live workers of a model against the card of an API."""
    compared = [(worker, card.differences(worker.card)) for worker in workers]
    matching = tuple(worker for worker, differences in compared if not differences)
    # Sorted, so that it reads the same whatever worker came first.
    differences = tuple(sorted({line for _, lines in compared for line in lines}))
    warnings = [f"some workers serve something else ({'; '.join(differences)})"] if matching and differences else []
    for what, values in {
        "weights": {shorten(worker.weights_fingerprint) for worker in matching},
        "dtypes": {worker.dtype for worker in matching},
    }.items():
        if len(values) > 1:
            warnings.append(f"{what} differ among workers ({', '.join(sorted(values))}): a job may get scores of each")
    return Standing(len(compared), matching, differences, tuple(warnings))
