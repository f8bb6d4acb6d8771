"""Does the delivering process of this host get on? ``python -m operations.delivery_health`` asks its metrics, as the
health check of a container.
"""

from __future__ import annotations

import http.client
import sys
import time

from settings.delivery import DeliverySettings
from workers.delivery.metrics import LAST_LOOK

FRESH_SECONDS = 60.0
ANSWER_SECONDS = 5.0


def main() -> int:
    """Return the exit status: 0 where it has looked for deliveries lately, else 1, after one line that says why."""
    try:
        settings = DeliverySettings()
        if settings.delivery_metrics_port is None:
            raise ValueError("SCORELINE_DELIVERY_METRICS_PORT is not set, so there is nothing to ask")
        ago = time.time() - _last_look(settings.delivery_metrics_port)
        if ago < max(FRESH_SECONDS, 3 * settings.delivery_poll_seconds):
            return 0
        reason = f"it last looked for deliveries {ago:.0f} s ago"
    except Exception as error:  # whatever keeps it from asking, the answer is no
        reason = f"can't ask: {str(error).partition(chr(10))[0]}"
    print(reason, file=sys.stderr)
    return 1


def _last_look(port: int) -> float:
    """Unix seconds; 0 before the first."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(LAST_LOOK))


if __name__ == "__main__":
    sys.exit(main())
