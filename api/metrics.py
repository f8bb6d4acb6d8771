"""The counters of the API and the state of the queue, in Prometheus's text format.

If several processes serve a port together, each can show the metrics of all: they keep their counters in files that all
of them read, and numbers of what they have in use in a table (:mod:`api.siblings`).

No label contains the id of a job or text of a client, and the operator says how many tenants labels may name, which is
none by default. So the number of time series is bounded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.types import Scope

from api.budget import Budget, Kind
from api.caching import ThrottledValue
from api.siblings import SharedTable, Siblings, counters_folder
from api.waiting.ended_jobs import EndedJobs
from jobs.file_batches.tables import BatchStatus
from jobs.invariant_watch import Watch
from jobs.invariants import CHECKS, Cost
from jobs.queue.statistics import QueueStatistics, Statistics, read_statistics
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import JobRecord, JobStatus, Submission
from telemetry.build_info import BuildInfo
from telemetry.named_tenants import NamedTenants

STATISTICS_SECONDS, MAX_STATISTICS_SECONDS = 5.0, 30.0
"""How long scrapes share the statistics of the queue: the longer, the longer it takes to count all waiting chunks."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""The label for unknown methods and paths, of which clients could invent any number, and for the methods that a route
does not have."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the histogram. Requests that wait for a job take up to minutes."""

GROUP_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Upper bounds of the histogram of groups; see api.acceptance.accepting."""


class Metrics:
    """The metrics of one API process, or of it and its siblings. Safe to use from threads."""

    def __init__(
        self,
        database: Database,
        watch: Watch,
        fresh_seconds: float,
        ended: EndedJobs,
        budget: Budget,
        siblings: Siblings | None = None,
        named_tenants: int = 0,
    ) -> None:
        """named_tenants: how many tenants have a label of their own name."""
        self._shown = CollectorRegistry()
        self._counters = self._shown
        if siblings is None:
            ProcessCollector(namespace="scoreline", registry=self._shown)
        else:
            self._counters = CollectorRegistry()  # shown with those of the siblings, from the files
            MultiProcessCollector(self._shown, str(counters_folder(siblings.folder)))  # type: ignore[no-untyped-call]
            self._shown.register(_ProcessesCollector(siblings.table))
        self._shown.register(BuildInfo("api"))
        self._tenants = NamedTenants(named_tenants, None if siblings is None else siblings.folder / "named_tenants")
        self._requests = self._counter(
            "scoreline_http_requests", "Requests that were answered.", "method", "route", "status"
        )
        self._seconds = Histogram(
            "scoreline_http_request_duration_seconds",
            "From a request's arrival to the end of its answer.",
            ("method", "route"),
            buckets=SECONDS,
            registry=self._counters,
        )
        errors = "Requests that were answered with an error, by its code (docs/observability.md)."
        self._errors = self._counter("scoreline_errors", errors, "code")
        accepted = "Jobs that this API accepted, those of /v1/score as origin call."
        self._accepted = self._counter("scoreline_jobs_accepted", accepted, "origin", "priority")
        self._groups = Histogram(
            "scoreline_accepted_together",
            "Submissions that one transaction of a process took, those that were refused included.",
            buckets=GROUP_SIZES,
            registry=self._counters,
        )
        of_tenant = "Jobs that this API accepted of a tenant. Tenants without a name of their own are other."
        self._tenant_jobs = self._counter("scoreline_tenant_accepted_jobs", of_tenant, "tenant")
        self._tenant_items = self._counter("scoreline_tenant_accepted_items", "Items of these jobs.", "tenant")
        self._tenant_tokens = self._counter(
            "scoreline_tenant_accepted_tokens", "Tokens of all sequences of these jobs.", "tenant"
        )
        reused = "Items of these jobs that need not be computed, because an equal item was or will be."
        self._tenant_reused = self._counter("scoreline_tenant_reused_items", reused, "tenant")
        ended_jobs = "Ends of jobs that this API learned of: by waiting, reading, cancelling or sweeping."
        self._ended_jobs = self._counter("scoreline_jobs_ended", ended_jobs, "status")
        lines = "Lines of batches that this API wrote, to output files (completed) or to error files (failed)."
        self._lines = self._counter("scoreline_batch_lines", lines, "outcome")
        self._batches = self._counter("scoreline_batches_ended", "Batches of files that this API ended.", "status")
        refused = "Requests and connections that a limit of docs/limits.md refused, by the limit's setting."
        self._refused = self._counter("scoreline_refused_requests", refused, "limit")
        self._ended = ended
        self._siblings = siblings
        self._budget = budget
        self._awaited_jobs: Callable[[], int] = lambda: 0
        self._shown.register(_UseCollector(self.in_use if siblings is None else siblings.table.in_use))
        self._shown.register(_StoreCollector(database, watch, fresh_seconds))

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(name, help_text, labels, registry=self._counters)

    def counter_of_lost_rings(self) -> Callable[[], None]:
        """Return the function that counts a ring or a notice that an outage of Redis took."""
        return self._counter("scoreline_rings_lost", "Rings and notices lost to an outage of Redis.").inc

    def show(self, collector: Collector) -> None:
        """Show what a collector has, too."""
        self._shown.register(collector)

    def read_awaited_jobs_from(self, awaited: Callable[[], int]) -> None:
        """Set the function that returns the number of jobs that requests of this process wait for."""
        self._awaited_jobs = awaited

    def in_use(self) -> list[int]:
        """Return how many jobs requests of this process wait for, and what :meth:`api.budget.Budget.in_use` does."""
        return [self._awaited_jobs(), *self._budget.in_use()]

    def count_request(self, scope: Scope, status: int, seconds: float, code: str | None = None) -> None:
        """Count an answered request. code: of the error that it was answered with.

        A method that a route does not have counts as another one. Otherwise anybody could make a time series for each
        method of each route, and the text of the metrics three times as long.
        """
        is_known = scope["method"] in METHODS and status != HTTPStatus.METHOD_NOT_ALLOWED
        method = scope["method"] if is_known else OTHER
        route = getattr(scope.get("route"), "path", OTHER)
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)
        if code is not None:
            self._errors.labels(code).inc()

    def count_accepted(self, submission: Submission, reused_items: int) -> None:
        """Count a job that was accepted now, not earlier."""
        self._accepted.labels(submission.origin.value, submission.priority.value).inc()
        self._tenant_jobs.labels(self._tenants.label(submission.tenant)).inc()
        self._count_work(submission, reused_items)

    def count_uploaded(self, job: JobRecord) -> None:
        """Count the items of a job that was accepted without them, and then sent in pieces."""
        self._count_work(job, job.reused_items)

    def _count_work(self, job: Submission | JobRecord, reused_items: int) -> None:
        tenant = self._tenants.label(job.tenant)
        self._tenant_items.labels(tenant).inc(job.total_items)
        self._tenant_tokens.labels(tenant).inc(job.prompt_tokens)
        self._tenant_reused.labels(tenant).inc(reused_items)

    def count_lines(self, *, completed: int, failed: int) -> None:
        self._lines.labels("completed").inc(completed)
        self._lines.labels("failed").inc(failed)

    def count_batch(self, status: BatchStatus) -> None:
        self._batches.labels(status.value).inc()

    def count_group(self, members: int) -> None:
        self._groups.observe(members)

    def count_refused(self, limit: str) -> None:
        """Count a request that a limit refused. limit: the name of the setting, such as ``max_headers``."""
        self._refused.labels(limit).inc()

    def count_ended(self, job_id: str, status: JobStatus) -> None:
        """Count a job if it has ended, once, however often it is read."""
        if not status.ended or not self._ended.add(job_id, counting=True):
            return
        if self._siblings is None or self._siblings.table.count_job(job_id):
            self._ended_jobs.labels(status.value).inc()

    def text(self) -> bytes:
        """Return all metrics. Blocks on the database; without it, the metrics that need it are left out."""
        return generate_latest(self._shown)


class _UseCollector(Collector):
    """What is in use now, in the order of :meth:`Metrics.in_use`."""

    def __init__(self, in_use: Callable[[], list[int]]) -> None:
        self._in_use = in_use

    def collect(self) -> Iterator[Metric]:
        awaited_jobs, *of_kinds, held_bytes = self._in_use()
        yield GaugeMetricFamily("scoreline_awaited_jobs", "Jobs whose end a request waits for.", awaited_jobs)
        what = (
            "Requests that are not ended: streams wait for a job, follow events, or receive JSON lines or files;"
            " uploads send JSON lines or files."
        )
        requests = GaugeMetricFamily("scoreline_open_requests", what, labels=("kind",))
        for kind, number in zip(Kind, of_kinds, strict=True):
            requests.add_metric((kind.value,), number)
        yield requests
        held = "Bytes in memory of bodies that are not read as JSON yet, uploads excepted, and of unread answers."
        yield GaugeMetricFamily("scoreline_buffered_body_bytes", held, held_bytes)


class _ProcessesCollector(Collector):
    """The metrics of prometheus_client about a process, for each of the processes that serve a port together."""

    def __init__(self, table: SharedTable) -> None:
        self._table = table

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for number, process_id in self._table.process_ids().items():
            one = ProcessCollector(namespace="scoreline", pid=partial(int, process_id), registry=None)
            for metric in one.collect():
                family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    family.add_sample(sample.name, {**sample.labels, "process": str(number)}, sample.value)
        yield from families.values()


class _StoreCollector(Collector):
    """The metrics that are read from elsewhere at each scrape: the queue and the invariants."""

    def __init__(self, database: Database, watch: Watch, fresh_seconds: float) -> None:
        self._watch = watch

        def statistics() -> Statistics:
            database.check_use()
            return read_statistics(database, fresh_seconds)

        self._statistics = ThrottledValue(statistics, STATISTICS_SECONDS, MAX_STATISTICS_SECONDS)

    def collect(self) -> Iterator[Metric]:
        if self._watch.violations is not None:
            yield _violations(self._watch)
        statistics: Statistics | None = None
        with contextlib.suppress(StorageUnavailable):
            statistics = self._statistics.get()
        yield GaugeMetricFamily(
            "scoreline_database_up",
            "Whether the database can be used, and its schema will do.",
            statistics is not None,
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
    weights = GaugeMetricFamily(
        "scoreline_live_workers_different_weights", "How many different weights live workers have.", labels=("model",)
    )
    for worker in statistics.workers:
        live.add_metric((worker.model,), worker.workers)
        rate.add_metric((worker.model,), worker.tokens_per_second)
        weights.add_metric((worker.model,), worker.different_weights)
    yield from (waiting_chunks, waiting_tokens, oldest, live, rate, weights)
    yield GaugeMetricFamily("scoreline_running_batches", "Batches that workers hold.", statistics.running_batches)
    overdue = "Webhooks that are due for ten seconds or more and are not being sent."
    yield GaugeMetricFamily("scoreline_overdue_deliveries", overdue, statistics.overdue_deliveries)
    disabled = "Endpoints of webhooks that failed for too long, or said that they are gone."
    yield GaugeMetricFamily("scoreline_disabled_endpoints", disabled, statistics.disabled_endpoints)
