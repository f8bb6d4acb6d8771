"""The metrics of a process that delivers webhooks, in Prometheus's text format."""

from __future__ import annotations

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from jobs.webhooks.tables import DeliveryState
from telemetry.build_info import BuildInfo
from workers.metrics_port import offer_metrics

LAST_LOOK = "scoreline_delivery_last_look_timestamp_seconds"

ATTEMPT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0)
"""Upper bounds of the histogram of attempts. An attempt has a time limit, 15 seconds by default."""

log = structlog.stdlib.get_logger("delivery")


class DeliveryMetrics:
    """The metrics of one process. Safe to use from several threads. No label names a tenant or a host."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="scoreline", registry=self._registry)
        self._registry.register(BuildInfo("deliverer"))

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(name, help_text, labels, registry=self._registry)

        attempts = "Attempts to deliver a webhook, by what came of them: delivered, or why not."
        self._attempts = counter("scoreline_delivery_attempts", attempts, "outcome")
        self._seconds = Histogram(
            "scoreline_delivery_attempt_duration_seconds",
            "How long these attempts took, name lookup included.",
            buckets=ATTEMPT_SECONDS,
            registry=self._registry,
        )
        self._ended = counter("scoreline_deliveries_ended", "Deliveries, by how they ended.", "state")
        self._disabled = counter("scoreline_endpoints_disabled", "Endpoints that were disabled.")
        self._looked_at = Gauge(
            LAST_LOOK, "When deliveries that are due were last looked for, in Unix seconds.", registry=self._registry
        )
        self._attempts.labels("delivered")
        for state in (DeliveryState.DELIVERED, DeliveryState.FAILED, DeliveryState.SKIPPED):
            self._ended.labels(state.value)

    def looked(self) -> None:
        """Record that deliveries were looked for successfully."""
        self._looked_at.set_to_current_time()

    def attempted(self, outcome: str, seconds: float | None = None) -> None:
        """Count an attempt. seconds: how long it took; None if nothing was sent, or if that is not known."""
        self._attempts.labels(outcome).inc()
        if seconds is not None:
            self._seconds.observe(seconds)

    def settled(self, state: DeliveryState, deliveries: int = 1) -> None:
        """Count deliveries that have ended; pending ones are not counted."""
        if state is not DeliveryState.PENDING:
            self._ended.labels(state.value).inc(deliveries)

    def disabled(self) -> None:
        """Count an endpoint that was disabled."""
        self._disabled.inc()

    def serve(self, host: str, port: int) -> None:
        """Serve the metrics over HTTP in a thread. If the port can't be bound, that is logged and nothing is served."""
        offer_metrics("delivery", host, port, self._registry, log)
