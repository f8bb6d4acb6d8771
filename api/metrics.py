"""What this process counts, and the state of the queue, in Prometheus's text format.

No label has a tenant's, a job's or a client's words in it: their number must not grow with the traffic.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

from api.remembering import Remembered
from jobs.invariant_watch import Watch
from jobs.invariants import CHECKS, Cost
from jobs.queue.statistics import Figures, Queue, queue_figures
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import JobStatus, Submission

FIGURES_SECONDS, MOST_FIGURES_SECONDS = 5.0, 30.0
"""How long the queue's figures serve scrapes, the longer the more there is to count: every waiting chunk of it."""

REMEMBERED_ENDS = 10_000
"""Ended jobs that are remembered so that each counts once, however often it is read."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""What stands for methods and paths that are not this service's: clients could make up any number of them."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the histogram: `/v1/score` and `Prefer: wait` hold a request for minutes."""


class Metrics:
    """The metrics of one API process. Safe to use from threads.

    rings_lost: how many rings and notices an outage of Redis has cost so far; None where there is no Redis.
    """

    def __init__(
        self, database: Database, watch: Watch, fresh_seconds: float, rings_lost: Callable[[], int] | None
    ) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="scoreline", registry=self._registry)
        self._requests = Counter(
            "scoreline_http_requests",
            "Requests that were answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "scoreline_http_request_duration_seconds",
            "From a request's arrival to the end of its answer.",
            ("method", "route"),
            buckets=SECONDS,
            registry=self._registry,
        )
        self._accepted = Counter(
            "scoreline_jobs_accepted",
            "Jobs that this process accepted, those of /v1/score as origin call.",
            ("origin", "priority"),
            registry=self._registry,
        )
        self._ended_jobs = Counter(
            "scoreline_jobs_ended",
            "Ends of jobs that this process learned of: by waiting, reading, cancelling or sweeping.",
            ("status",),
            registry=self._registry,
        )
        self._waiters = Gauge(
            "scoreline_awaited_jobs", "Jobs whose end a request of this process waits for.", registry=self._registry
        )
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._seeing = threading.Lock()
        self._registry.register(_State(database, watch, fresh_seconds, rings_lost))

    def awaited_by(self, awaited: Callable[[], int]) -> None:
        """Have the number of awaited jobs read from here."""
        self._waiters.set_function(awaited)

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request."""
        method = scope["method"] if scope["method"] in METHODS else OTHER
        route = getattr(scope.get("route"), "path", OTHER)
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)

    def accepted(self, submission: Submission) -> None:
        """Count a job that was not there before."""
        self._accepted.labels(submission.origin.value, submission.priority.value).inc()

    def saw(self, job_id: str, status: JobStatus) -> None:
        """Count a job's end, the first time that it is seen."""
        if not status.ended:
            return
        with self._seeing:
            if job_id in self._ended:
                return
            self._ended[job_id] = None
            if len(self._ended) > REMEMBERED_ENDS:
                self._ended.popitem(last=False)
        self._ended_jobs.labels(status.value).inc()

    def text(self) -> bytes:
        """All of it. Blocks on the database, and does without it where it is away."""
        return generate_latest(self._registry)


class _State(Collector):
    """What is not counted up, but looked at when it is asked for."""

    def __init__(
        self, database: Database, watch: Watch, fresh_seconds: float, rings_lost: Callable[[], int] | None
    ) -> None:
        self._watch = watch
        self._rings_lost = rings_lost

        def figures() -> Figures:
            database.check()
            return queue_figures(database, fresh_seconds)

        self._figures = Remembered(figures, FIGURES_SECONDS, MOST_FIGURES_SECONDS)

    def collect(self) -> Iterator[Metric]:
        if self._rings_lost is not None:
            yield CounterMetricFamily(
                "scoreline_rings_lost", "Rings and notices lost to an outage of Redis.", self._rings_lost()
            )
        if self._watch.violations is not None:
            yield _violations(self._watch)
        figures: Figures | None = None
        with contextlib.suppress(StorageUnavailable):
            figures = self._figures.get()
        up = GaugeMetricFamily("scoreline_database_up", "Whether the database answers, with a schema that will do.")
        up.add_metric((), figures is not None)
        yield up
        if figures is not None:
            yield from _queue(figures)


def _violations(watch: Watch) -> Metric:
    family = GaugeMetricFamily(
        "scoreline_invariant_violated", "Whether a rule of the store was broken at the last look.", labels=("check",)
    )
    broken = {violation.check.name for violation in watch.violations or ()}
    for check in CHECKS:
        if check.cost is not Cost.FULL:
            family.add_metric((check.name,), check.name in broken)
    return family


def _queue(figures: Figures) -> Iterator[Metric]:
    labels = ("model", "class")
    waiting_chunks = GaugeMetricFamily("scoreline_waiting_chunks", "Chunks that wait to be claimed.", labels=labels)
    waiting_tokens = GaugeMetricFamily(
        "scoreline_waiting_tokens", "Tokens to compute of waiting chunks, shared queries left out.", labels=labels
    )
    oldest = GaugeMetricFamily(
        "scoreline_oldest_waiting_seconds", "Since the job of the first waiting chunk was accepted.", labels=labels
    )
    # What has a live worker and nothing to do is told as nothing, rather than not at all.
    empty = [Queue(crew.model, interactive, 0, 0, 0.0) for crew in figures.crews for interactive in (False, True)]
    found = {(queue.model, queue.interactive): queue for queue in (*empty, *figures.queues)}
    for queue in found.values():
        of = (queue.model, "interactive" if queue.interactive else "other")
        waiting_chunks.add_metric(of, queue.chunks)
        waiting_tokens.add_metric(of, queue.tokens)
        oldest.add_metric(of, queue.oldest_seconds)
    live = GaugeMetricFamily("scoreline_live_workers", "Workers that were seen lately.", labels=("model",))
    rate = GaugeMetricFamily(
        "scoreline_live_workers_tokens_per_second", "What live workers compute, as they measure it.", labels=("model",)
    )
    for crew in figures.crews:
        live.add_metric((crew.model,), crew.workers)
        rate.add_metric((crew.model,), crew.tokens_per_second)
    running = GaugeMetricFamily("scoreline_running_batches", "Batches that workers hold.")
    running.add_metric((), figures.running_batches)
    overdue = GaugeMetricFamily(
        "scoreline_overdue_deliveries", "Webhooks that are due for ten seconds or more and are not being sent."
    )
    overdue.add_metric((), figures.overdue_deliveries)
    disabled = GaugeMetricFamily(
        "scoreline_disabled_endpoints", "Endpoints of webhooks that failed for too long, or said that they are gone."
    )
    disabled.add_metric((), figures.disabled_endpoints)
    yield from (waiting_chunks, waiting_tokens, oldest, live, rate, running, overdue, disabled)
