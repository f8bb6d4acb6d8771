"""The port at which a worker's process offers its metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, start_http_server
from structlog.stdlib import BoundLogger

from settings.errors.mistakes import setting_error


def offer_metrics(role: str, host: str, port: int, registry: CollectorRegistry, log: BoundLogger) -> None:
    """Serve metrics over HTTP in a thread. If the port can't be bound, that is logged, and the process goes on.

    role: the first word of the names of the settings for the host and the port.
    """
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        why = f"{host} port {port} can't be used ({error.strerror or error}); name another port, or unset it"
        log.error("can't offer metrics", reason=str(setting_error(f"{role}_metrics_port", str(port), why)))
