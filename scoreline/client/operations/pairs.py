"""Pairs of a query and its items, as ``map`` takes them."""

from __future__ import annotations

import dataclasses
import random

from scoreline.client.decisions import Decision
from scoreline.client.errors import Overloaded, QuotaExceeded, RateLimited, ScorelineError, Unavailable
from scoreline.client.exchange.sending import longest_pause
from scoreline.client.options import Items, Query, ScoreJobOptions
from scoreline.client.progress import MapProgress
from scoreline.client.results import ScoreResult

Pair = tuple[Query, Items] | tuple[Query, Items, ScoreJobOptions]
"""A query and the items that follow it, and options of its own, if it has some."""

BUSY = (Overloaded, QuotaExceeded, RateLimited, Unavailable)
"""The errors that are no errors here, but say that the client is to wait."""


def pause_of(error: ScorelineError, refusals: int) -> float:
    """Return how long to wait after so many refusals of a pair. Raises the error if the service does not say so."""
    if error.retry_after is None:
        raise error
    return error.retry_after + random.uniform(0, longest_pause(refusals))


def pair_key(key: str | None, number: int) -> str | None:
    """Return the Idempotency-Key of a pair, from that of the whole."""
    return None if key is None else f"{key}-{number}"


class Tally:
    """Counts what ``map`` has returned."""

    def __init__(self, total: int | None) -> None:
        self._progress = MapProgress(0, 0, 0, total)

    def add(self, returned: ScoreResult | Decision | ScorelineError) -> MapProgress:
        """Count a result or an error, and return how far it is now."""
        before, failed = self._progress, isinstance(returned, ScorelineError)
        self._progress = dataclasses.replace(
            before,
            pairs=before.pairs + 1,
            failed_pairs=before.failed_pairs + failed,
            items=before.items + _items_of(returned),
        )
        return self._progress


def _items_of(returned: ScoreResult | Decision | ScorelineError) -> int:
    if isinstance(returned, ScorelineError):
        return 0
    return len(returned.scores if isinstance(returned, ScoreResult) else returned.answers)
