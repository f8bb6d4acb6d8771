"""The metrics of a scoring worker, offered in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from scoring.options import Priority
from telemetry.build_info import BuildInfo
from workers.metrics_port import offer_metrics

log = structlog.stdlib.get_logger("worker")


class BatchOutcome(StrEnum):
    """How the work on a batch ended."""

    FINISHED = "finished"  # all of its scores are committed
    LOST = "lost"  # its lease ran out, so its chunks belong to other workers now
    GIVEN_BACK = "given_back"  # it was not scored to its end, for a reason that is not its fault
    FAILED = "failed"  # the engine failed at it, or its scores could not be stored


class Phase(StrEnum):
    """A phase of a job."""

    ACCEPT_TO_CLAIM = "accept_to_claim"  # until its first chunk is claimed; of jobs that succeed
    CLAIM_TO_FIRST_SCORE = "claim_to_first_score"  # of each batch that holds chunks of the job
    SCORE_TO_COMMIT = "score_to_commit"  # of the first scores of a commit
    ACCEPT_TO_END = "accept_to_end"  # of jobs that succeed


PHASE_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 1_800.0, 7_200.0, 28_800.0, 86_400.0),
)
"""Upper bounds of the histogram of phases: from a call, which takes milliseconds, to work that waits for a day."""


class WorkerMetrics:
    """The metrics of one worker. Safe to use from several threads."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="scoreline", registry=self._registry)
        self._registry.register(BuildInfo("worker", "jax", "jaxlib"))
        phases = Histogram(
            "scoreline_worker_job_phase_seconds",
            "How long the phases of jobs took, as the worker saw them that ended the phase.",
            ("phase", "priority"),
            buckets=PHASE_SECONDS,
            registry=self._registry,
        )
        # Looking for the labels takes longer than counting, and each call is counted in four phases.
        self._phases = {
            (phase, priority): phases.labels(phase.value, priority.value) for phase in Phase for priority in Priority
        }

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"scoreline_worker_{name}", help_text, labels, registry=self._registry)

        self._items = counter("scored_items", "Items of batches that were scored to their end.")
        self._tokens = counter("computed_tokens", "Tokens computed for them; behind a long query, one counts more.")
        self._seconds = counter("scoring_seconds", "Seconds of this work, without batches that preempted it.")
        self._batches = counter("batches", "Batches, by how the work on them ended.", "outcome")
        for outcome in BatchOutcome:
            self._batches.labels(outcome.value)

    def count_scored(self, items: int, tokens: int, seconds: float) -> None:
        """Count the work of a batch that was scored to its end."""
        self._items.inc(items)
        self._tokens.inc(tokens)
        self._seconds.inc(seconds)

    def observe_phase(self, phase: Phase, priority: Priority, seconds: float) -> None:
        """Count a phase of a job that took so long. If the database's clock was set back meanwhile, it took no time."""
        self._phases[phase, priority].observe(max(0.0, seconds))

    def count_batch(self, outcome: BatchOutcome) -> None:
        """Count a batch by its outcome."""
        self._batches.labels(outcome.value).inc()

    def serve(
        self,
        host: str,
        port: int,
        prefix_counts: Callable[[], Mapping[str, int]] | None = None,
        estimate_ratio: Callable[[], float] | None = None,
    ) -> None:
        """Offer the metrics over HTTP in a thread. A port that can't be bound is logged; scoring goes on without it.

        prefix_counts: returns the events of the engine's prefix cache, counted so far; None if it has no such cache.
        estimate_ratio: returns measured over estimated seconds of recent work; None if the engine makes no estimates.
        """
        if prefix_counts is not None:
            self._registry.register(_PrefixCache(prefix_counts))
        if estimate_ratio is not None:
            gauge = Gauge(
                "scoreline_worker_estimate_ratio",
                "Measured over estimated seconds of recent work, by rates that were measured elsewhere.",
                registry=self._registry,
            )
            gauge.set_function(estimate_ratio)
        offer_metrics("worker", host, port, self._registry, log)


class _PrefixCache(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "scoreline_worker_prefix_cache", "Events of the cache of prefixes.", labels=("event",)
        )
        for event, count in self._counts().items():
            family.add_metric((event,), count)
        yield family
