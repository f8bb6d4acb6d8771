"""The counters of this process and the state of the queue, in Prometheus's text format.

No label contains the name of a tenant or a job, or text of a client, so the number of time series is bounded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

from api.budget import Budget, Kind
from api.caching import ThrottledValue
from api.ended_jobs import EndedJobs
from jobs.invariant_watch import Watch
from jobs.invariants import CHECKS, Cost
from jobs.queue.statistics import QueueStatistics, Statistics, read_statistics
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import JobStatus, Submission

STATISTICS_SECONDS, MAX_STATISTICS_SECONDS = 5.0, 30.0
"""How long scrapes share the statistics of the queue: the longer, the longer it takes to count all waiting chunks."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""The label for unknown methods and paths, of which clients could invent any number."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the histogram. Requests that wait for a job take up to minutes."""


class Metrics:
    """The metrics of one API process. Safe to use from threads."""

    def __init__(
        self,
        database: Database,
        watch: Watch,
        fresh_seconds: float,
        rings_lost: Callable[[], int] | None,  # how many rings and notices outages of Redis took; None without Redis
        ended: EndedJobs,
    ) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="scoreline", registry=self._registry)

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(name, help_text, labels, registry=self._registry)

        self._requests = counter("scoreline_http_requests", "Requests that were answered.", "method", "route", "status")
        self._seconds = Histogram(
            "scoreline_http_request_duration_seconds",
            "From a request's arrival to the end of its answer.",
            ("method", "route"),
            buckets=SECONDS,
            registry=self._registry,
        )
        accepted = "Jobs that this process accepted, those of /v1/score as origin call."
        self._accepted = counter("scoreline_jobs_accepted", accepted, "origin", "priority")
        ended_jobs = "Ends of jobs that this process learned of: by waiting, reading, cancelling or sweeping."
        self._ended_jobs = counter("scoreline_jobs_ended", ended_jobs, "status")
        refused = "Requests and connections that a limit of docs/limits.md refused, by the limit's setting."
        self._refused = counter("scoreline_refused_requests", refused, "limit")
        self._waiters = Gauge(
            "scoreline_awaited_jobs", "Jobs whose end a request of this process waits for.", registry=self._registry
        )
        self._open = Gauge(
            "scoreline_open_requests",
            "Requests that are not ended: streams wait for a job or receive JSON lines, uploads send JSON lines.",
            ("kind",),
            registry=self._registry,
        )
        self._body_bytes = Gauge(
            "scoreline_buffered_body_bytes",
            "Bytes of bodies in memory that are not read as JSON yet, uploads excepted.",
            registry=self._registry,
        )
        self._ended = ended
        self._registry.register(_StoreCollector(database, watch, fresh_seconds, rings_lost))

    def read_awaited_jobs_from(self, awaited: Callable[[], int]) -> None:
        """Set the function that returns the number of jobs that requests wait for."""
        self._waiters.set_function(awaited)

    def read_budget_from(self, budget: Budget) -> None:
        """Set the budget whose use is shown."""
        for kind in Kind:
            self._open.labels(kind.value).set_function(partial(budget.open_requests, kind))
        self._body_bytes.set_function(budget.buffered_body_bytes)

    def count_request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count an answered request."""
        method = scope["method"] if scope["method"] in METHODS else OTHER
        route = getattr(scope.get("route"), "path", OTHER)
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)

    def count_accepted(self, submission: Submission) -> None:
        """Count a job that was accepted now, not earlier."""
        self._accepted.labels(submission.origin.value, submission.priority.value).inc()

    def count_refused(self, limit: str) -> None:
        """Count a request that a limit refused. limit: the name of the setting, such as ``max_headers``."""
        self._refused.labels(limit).inc()

    def count_ended(self, job_id: str, status: JobStatus) -> None:
        """Count a job if it has ended, once, however often it is read."""
        if status.ended and self._ended.add(job_id, counting=True):
            self._ended_jobs.labels(status.value).inc()

    def text(self) -> bytes:
        """Return all metrics. Blocks on the database; without it, the metrics that need it are left out."""
        return generate_latest(self._registry)


class _StoreCollector(Collector):
    """The metrics that are read from elsewhere at each scrape: the queue, the invariants and lost rings."""

    def __init__(
        self, database: Database, watch: Watch, fresh_seconds: float, rings_lost: Callable[[], int] | None
    ) -> None:
        self._watch = watch
        self._rings_lost = rings_lost

        def statistics() -> Statistics:
            database.check()
            return read_statistics(database, fresh_seconds)

        self._statistics = ThrottledValue(statistics, STATISTICS_SECONDS, MAX_STATISTICS_SECONDS)

    def collect(self) -> Iterator[Metric]:
        if self._rings_lost is not None:
            yield CounterMetricFamily(
                "scoreline_rings_lost", "Rings and notices lost to an outage of Redis.", self._rings_lost()
            )
        if self._watch.violations is not None:
            yield _violations(self._watch)
        statistics: Statistics | None = None
        with contextlib.suppress(StorageUnavailable):
            statistics = self._statistics.get()
        yield GaugeMetricFamily(
            "scoreline_database_up", "Whether the database answers, with a schema that will do.", statistics is not None
        )
        if statistics is not None:
            yield from _queue(statistics)


def _violations(watch: Watch) -> Metric:
    family = GaugeMetricFamily(
        "scoreline_invariant_violated", "Whether a rule of the store was broken at the last look.", labels=("check",)
    )
    broken = {violation.check.name for violation in watch.violations or ()}
    for check in CHECKS:
        if check.cost is not Cost.FULL:
            family.add_metric((check.name,), check.name in broken)
    return family


def _queue(statistics: Statistics) -> Iterator[Metric]:
    labels = ("model", "class")
    waiting_chunks = GaugeMetricFamily("scoreline_waiting_chunks", "Chunks that wait to be claimed.", labels=labels)
    waiting_tokens = GaugeMetricFamily(
        "scoreline_waiting_tokens", "Tokens to compute of waiting chunks, shared queries left out.", labels=labels
    )
    oldest = GaugeMetricFamily(
        "scoreline_oldest_waiting_seconds", "Since the job of the first waiting chunk was accepted.", labels=labels
    )
    # A model with live workers and an empty queue has values of 0 rather than none.
    empty = [
        QueueStatistics(worker.model, interactive, 0, 0, 0.0)
        for worker in statistics.workers
        for interactive in (False, True)
    ]
    found = {(queue.model, queue.interactive): queue for queue in (*empty, *statistics.queues)}
    for queue in found.values():
        of = (queue.model, "interactive" if queue.interactive else "other")
        waiting_chunks.add_metric(of, queue.chunks)
        waiting_tokens.add_metric(of, queue.tokens)
        oldest.add_metric(of, queue.oldest_seconds)
    live = GaugeMetricFamily("scoreline_live_workers", "Workers that were seen lately.", labels=("model",))
    rate = GaugeMetricFamily(
        "scoreline_live_workers_tokens_per_second", "What live workers compute, as they measure it.", labels=("model",)
    )
    for worker in statistics.workers:
        live.add_metric((worker.model,), worker.workers)
        rate.add_metric((worker.model,), worker.tokens_per_second)
    yield from (waiting_chunks, waiting_tokens, oldest, live, rate)
    yield GaugeMetricFamily("scoreline_running_batches", "Batches that workers hold.", statistics.running_batches)
    overdue = "Webhooks that are due for ten seconds or more and are not being sent."
    yield GaugeMetricFamily("scoreline_overdue_deliveries", overdue, statistics.overdue_deliveries)
    disabled = "Endpoints of webhooks that failed for too long, or said that they are gone."
    yield GaugeMetricFamily("scoreline_disabled_endpoints", disabled, statistics.disabled_endpoints)
