"""Pairs of a query and its items, as ``map`` takes them."""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from scoreline.client.errors import Overloaded, QuotaExceeded, RateLimited, ScorelineError, Unavailable
from scoreline.client.exchange.sending import LONGEST_PAUSE_SECONDS
from scoreline.client.job_objects import Priority
from scoreline.client.operations.scoring import (
    Items,
    LabelNormalization,
    Labels,
    LabelScoring,
    Query,
    TextLabels,
)
from scoreline.client.operations.submitting import submit
from scoreline.client.results import ScoreResult

Pair = tuple[Query, Items]
"""A query and the items that follow it."""

BUSY = (Overloaded, QuotaExceeded, RateLimited, Unavailable)
"""The errors that are no errors here, but say that the client is to wait."""


class PairOptions(TypedDict, total=False):
    """The options of :meth:`submit` that hold for all pairs."""

    labels: TextLabels | None
    label_token_ids: Labels | None
    label_token_sequences: Sequence[Sequence[int]] | None
    label_scoring: LabelScoring | None
    label_normalization: LabelNormalization | None
    apply_softmax: bool
    temperature: float | None
    query_template: str | None
    item_template: str | None
    template: str | None
    instruction: str | None
    item_first: bool
    return_logprobs: bool
    return_logits: bool
    return_provenance: bool
    model: str | None
    metadata: Mapping[str, str] | None
    priority: Priority | None
    expires_in: float | None
    webhook: Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True, slots=True)
class MapProgress:
    """How far ``map`` has got."""

    pairs: int  # whose results, or errors, were returned
    failed_pairs: int  # those of them that have an error in place of a result
    items: int  # that were scored
    total_pairs: int | None  # None if the pairs come from an iterator, whose end nobody knows

    @property
    def total_items(self) -> int | None:
        """What a bar counts up to."""
        return self.total_pairs

    @property
    def scored_items(self) -> int:
        """What a bar counts."""
        return self.pairs


def check_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError if an option is unknown, before any pair is read."""
    signature = inspect.signature(submit)
    for name in options:
        if name not in PairOptions.__annotations__:
            raise TypeError(f"map() got an unexpected keyword argument {name!r}")
    signature.bind(None, None, None, **options)


def pause_of(error: ScorelineError, refusals: int) -> float:
    """Return how long to wait after so many refusals of a pair. Raises the error if the service does not say so."""
    if error.retry_after is None:
        raise error
    return error.retry_after + random.uniform(0, min(LONGEST_PAUSE_SECONDS, 0.5 * 2**refusals))


def pair_key(key: str | None, number: int) -> str | None:
    """Return the Idempotency-Key of a pair, from that of the whole."""
    return None if key is None else f"{key}-{number}"


class Tally:
    """Counts what ``map`` has returned."""

    def __init__(self, total: int | None) -> None:
        self._progress = MapProgress(0, 0, 0, total)

    def add(self, returned: ScoreResult | ScorelineError) -> MapProgress:
        """Count a result or an error, and return how far it is now."""
        before, failed = self._progress, isinstance(returned, ScorelineError)
        self._progress = dataclasses.replace(
            before,
            pairs=before.pairs + 1,
            failed_pairs=before.failed_pairs + failed,
            items=before.items + (0 if isinstance(returned, ScorelineError) else len(returned.scores)),
        )
        return self._progress
