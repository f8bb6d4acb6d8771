"""What a delivering process counts, in Prometheus's text format."""

from __future__ import annotations

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, start_http_server

from jobs.webhooks.tables import DeliveryState

LAST_LOOK = "scoreline_delivery_last_look_timestamp_seconds"

log = structlog.stdlib.get_logger("delivery")


class DeliveryMetrics:
    """The metrics of one delivering process. Safe to use from threads. No label names a tenant or a host."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="scoreline", registry=self._registry)
        self._attempts = Counter(
            "scoreline_delivery_attempts",
            "Attempts to deliver a webhook, by what came of them: delivered, or why not.",
            ("outcome",),
            registry=self._registry,
        )
        self._ended = Counter(
            "scoreline_deliveries_ended", "Deliveries, by how they ended.", ("state",), registry=self._registry
        )
        self._disabled = Counter(
            "scoreline_endpoints_disabled", "Endpoints that were disabled.", registry=self._registry
        )
        self._looked_at = Gauge(
            LAST_LOOK, "When deliveries that are due were last looked for, in Unix seconds.", registry=self._registry
        )
        self._attempts.labels("delivered")
        for state in (DeliveryState.DELIVERED, DeliveryState.FAILED, DeliveryState.SKIPPED):
            self._ended.labels(state.value)

    def looked(self) -> None:
        """Note that deliveries were looked for, with the database there."""
        self._looked_at.set_to_current_time()

    def attempted(self, outcome: str) -> None:
        """Count an attempt."""
        self._attempts.labels(outcome).inc()

    def settled(self, state: DeliveryState, deliveries: int = 1) -> None:
        """Count deliveries, if they have ended."""
        if state is not DeliveryState.PENDING:
            self._ended.labels(state.value).inc(deliveries)

    def disabled(self) -> None:
        """Count an endpoint."""
        self._disabled.inc()

    def serve(self, host: str, port: int) -> None:
        """Offer all of it over HTTP, in a thread. A port that can't be bound is said, and no reason not to deliver."""
        try:
            start_http_server(port, host, self._registry)
        except OSError as error:
            log.error("can't offer metrics", host=host, port=port, reason=str(error))
