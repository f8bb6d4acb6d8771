"""What a scoring worker counts, in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

import structlog
from prometheus_client import CollectorRegistry, Counter, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

log = structlog.stdlib.get_logger("worker")


class Outcome(StrEnum):
    """What became of a batch."""

    FINISHED = "finished"
    LOST = "lost"
    """Its lease ran out: another worker has it."""
    GIVEN_BACK = "given_back"
    """Not to its end, and nobody is to blame."""
    FAILED = "failed"


class WorkerMetrics:
    """The metrics of one worker. Safe to use from threads."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="scoreline", registry=self._registry)

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"scoreline_worker_{name}", says, labels, registry=self._registry)

        self._items = counter("scored_items", "Items of batches that were scored to their end.")
        self._tokens = counter("computed_tokens", "What that took, in tokens, a token behind a long query for more.")
        self._seconds = counter("scoring_seconds", "What that took, without the work that was let in between.")
        self._batches = counter("batches", "Batches, by what became of them.", "outcome")
        for outcome in Outcome:
            self._batches.labels(outcome.value)

    def scored(self, items: int, tokens: int, seconds: float) -> None:
        """Count a batch that was scored to its end."""
        self._items.inc(items)
        self._tokens.inc(tokens)
        self._seconds.inc(seconds)

    def ended(self, outcome: Outcome) -> None:
        """Count a batch."""
        self._batches.labels(outcome.value).inc()

    def serve(self, host: str, port: int, prefix_counts: Callable[[], Mapping[str, int]] | None) -> None:
        """Offer all of it over HTTP, in a thread. A port that can't be bound is said, and no reason not to score.

        prefix_counts: what has become of prefixes so far, where the engine keeps them.
        """
        if prefix_counts is not None:
            self._registry.register(_PrefixCache(prefix_counts))
        try:
            start_http_server(port, host, self._registry)
        except OSError as error:
            log.error("can't offer metrics", host=host, port=port, reason=str(error))


class _PrefixCache(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "scoreline_worker_prefix_cache", "What became of the work on queries.", labels=("event",)
        )
        for event, count in self._counts().items():
            family.add_metric((event,), count)
        yield family
