"""Compare what the live workers serve with what this process serves.

The API and the workers load the tokenizer independently, so in a deployment that is half upgraded one model name can
stand for two tokenizers. The workers register their model cards, which are compared here with the card of this process.
If live workers serve something else and none serves the same, jobs and calls are refused. Without any live worker, jobs
are accepted and wait. In either case, a claim never gives a chunk to a worker that would score it wrongly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from api.caching import ThrottledValue
from checkpoints.card import ModelCard, shorten
from jobs.queue.worker_registry import live_workers
from jobs.store.database import Database
from jobs.store.records import WorkerRecord
from scoring.error_codes import ErrorCode, RequestError

GOOD_FOR_SECONDS = 1.0
"""How long submissions pass without another query. Each refusal rests on a query of its own."""

RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 60.0
"""The least and the greatest ``Retry-After``. It grows with the time for which there has been no matching worker."""

log = structlog.stdlib.get_logger("api.handshake")


@dataclass(frozen=True, slots=True)
class Compatibility:
    """How the live workers of the model compare with this process."""

    live: int = 0  # workers
    matching: tuple[WorkerRecord, ...] = ()  # the workers that serve the same
    differences: tuple[str, ...] = ()  # lines about what the other workers serve
    warnings: tuple[str, ...] = ()  # lines about differences that do not prevent scoring

    @property
    def mismatched(self) -> bool:
        """Whether there are live workers and none of them serves the same."""
        return self.live > 0 and not self.matching

    @property
    def tokens_per_second(self) -> float | None:
        """The pace of all matching workers; None if none is measured. One that is not counts with the average."""
        measured = [worker.tokens_per_second for worker in self.matching if worker.tokens_per_second is not None]
        return sum(measured) / len(measured) * len(self.matching) if measured else None


class CompatibilityCheck:
    """Compares the card of this process with those of the live workers. Blocks on the database; safe in threads."""

    def __init__(self, database: Database, card: ModelCard, fresh_seconds: float) -> None:
        self._database = database
        self._card = card
        self._of_version = (card.name, card.version)
        self._fresh_seconds = fresh_seconds
        self._throttled = ThrottledValue(self._look_up, GOOD_FOR_SECONDS)
        self._without_since: float | None = None
        self._reporting = threading.Lock()
        self._reported = Compatibility()

    def current(self) -> Compatibility:
        """Compare now. Logs a change of the result. Raises StorageUnavailable."""
        return self._throttled.refresh()

    def shared(self) -> Compatibility:
        """Return a comparison that is a second old at most, for which all callers share a look.

        Raises StorageUnavailable.
        """
        return self._throttled.get()

    def check(self, *, waits: bool) -> Compatibility:
        """Return the comparison, or raise RequestError MODEL_UNAVAILABLE if work can't be accepted now.

        waits: the work may wait until a worker is live. Raises StorageUnavailable.
        """
        recent = self.recent(waits=waits)
        if recent is not None:
            return recent
        found = self.current()
        if refusal := self._refusal(found, waits):
            raise RequestError(ErrorCode.MODEL_UNAVAILABLE, refusal, retry_after=self._retry_seconds())
        return found

    def recent(self, *, waits: bool) -> Compatibility | None:
        """Return a recent comparison if work can be accepted by it. Never blocks."""
        recent = self._throttled.fresh()
        return None if recent is None or self._refusal(recent, waits) else recent

    def is_due(self) -> bool:
        """Return whether the comparison should be repeated before it is needed. Never blocks."""
        return self._throttled.is_due()

    def _look_up(self) -> Compatibility:
        live = live_workers(self._database, self._fresh_seconds)
        # A worker of another version is no worse than none: what is accepted waits for one of this version.
        of_version = [worker for worker in live if (worker.card.name, worker.card.version) == self._of_version]
        found = compare(self._card, of_version)
        self._without_since = None if found.matching else self._without_since or time.monotonic()
        self._report(found)
        return found

    def _retry_seconds(self) -> float:
        """Return a ``Retry-After``: as long as there has been no matching worker, within bounds."""
        since = self._without_since
        lasted = 0.0 if since is None else time.monotonic() - since
        return min(MAX_RETRY_SECONDS, max(RETRY_SECONDS, lasted))

    def _refusal(self, found: Compatibility, waits: bool) -> str | None:
        if found.mismatched:
            return f"the workers of {self._card.name} serve something else than this server; see /readyz"
        if found.live == 0 and not waits:
            return f"no worker serves {self._card.name} right now; jobs sent to /v1/jobs wait for one"
        return None

    def _report(self, found: Compatibility) -> None:
        """Log what has changed since the last report. A different number of workers is not a change."""
        with self._reporting:
            before, self._reported = self._reported, found
        if found.mismatched and (not before.mismatched or before.differences != found.differences):
            log.error(
                "the workers serve something else: work is refused",
                model=self._card.name,
                differences=list(found.differences),
            )
        if before.mismatched and not found.mismatched:
            log.info("no worker stands in the way any more", model=self._card.name, live_workers=found.live)
        if found.warnings and found.warnings != before.warnings:
            log.warning("the workers differ", model=self._card.name, warnings=list(found.warnings))


def compare(card: ModelCard, workers: Iterable[WorkerRecord]) -> Compatibility:
    """Compare the live workers of a model with the card of an API process."""
    compared = [(worker, card.differences(worker.card)) for worker in workers]
    matching = tuple(worker for worker, differences in compared if not differences)
    # Sorted, so that the lines do not depend on the order of the workers.
    differences = tuple(sorted({line for _, lines in compared for line in lines}))
    warnings = [f"some workers serve something else ({'; '.join(differences)})"] if matching and differences else []
    for what, values in {
        "weights": {shorten(worker.weights_fingerprint) for worker in matching},
        "dtypes": {worker.dtype for worker in matching},
    }.items():
        if len(values) > 1:
            warnings.append(f"{what} differ among workers ({', '.join(sorted(values))}): a job may get scores of each")
    return Compatibility(len(compared), matching, differences, tuple(warnings))
