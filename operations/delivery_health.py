"""Health check of a container that delivers webhooks: ``python -m operations.delivery_health``.

It reads the metrics of the process on this host. The exit status is 0 if the process looked for deliveries lately;
otherwise it is 1, and one line on stderr says why.
"""

from __future__ import annotations

import http.client
import sys
import time

from operations.command import fail
from settings.delivery import DeliverySettings
from settings.errors.endings import Ending
from workers.delivery.metrics import LAST_LOOK

FRESH_SECONDS = 60.0
ANSWER_SECONDS = 5.0
OF_ALL_ADDRESSES = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a process is asked that listens at all addresses of its host."""


def main() -> int:
    """Return the exit status."""
    try:
        settings = DeliverySettings()
        if settings.delivery_metrics_port is None:
            raise ValueError("SCORELINE_DELIVERY_METRICS_PORT is not set, so there is nothing to ask")
        age = time.time() - _last_look(settings.delivery_metrics_host, settings.delivery_metrics_port)
    except Exception as error:  # the process is unhealthy whatever the error is
        return fail(f"can't ask: {error}")
    if age < max(FRESH_SECONDS, 3 * settings.delivery_poll_seconds):
        return Ending.DONE
    return fail(f"it last looked for deliveries {age:.0f} s ago")


def _last_look(host: str, port: int) -> float:
    """Return when the process last looked for deliveries, in Unix seconds; 0 if it never did."""
    connection = http.client.HTTPConnection(OF_ALL_ADDRESSES.get(host, host), port, timeout=ANSWER_SECONDS)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(LAST_LOOK))


if __name__ == "__main__":
    sys.exit(main())
