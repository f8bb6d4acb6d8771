"""The process that delivers webhooks: ``python -m workers.delivery``. It needs the database, and neither Redis nor a
device; there may be several.
"""

from __future__ import annotations

import os

import structlog
from pydantic import ValidationError

from jobs.store.database import Database, StorageUnavailable
from settings.delivery import DeliverySettings
from settings.jobs import StoreSettings
from settings.logs import configure_logs
from settings.unknown import warn_of_unknown_variables
from settings.webhooks import WebhookSettings
from webhooks.sending import Sender
from workers.delivery.loop import DeliveryLoop
from workers.delivery.metrics import DeliveryMetrics
from workers.stopping import BROKEN, STOPPED, Stopping, end_process

RETRY_SECONDS = 2.0

log = structlog.stdlib.get_logger("delivery")


def main() -> int:
    """Deliver until stopped: what is being sent then is waited for. Returns the exit status."""
    configure_logs()
    warn_of_unknown_variables(os.environ)
    stopping = Stopping()
    try:
        settings, webhooks = DeliverySettings(), WebhookSettings()
        database = Database.open(StoreSettings())
        sender = Sender(webhooks)
    except (ValidationError, ValueError, OSError) as error:
        log.error("can't start", reason=str(error))
        return BROKEN
    metrics = DeliveryMetrics()
    if settings.delivery_metrics_port is not None:
        metrics.serve(settings.delivery_metrics_host, settings.delivery_metrics_port)
    loop = DeliveryLoop(database, sender, settings, webhooks.webhook_timeout_seconds, metrics)
    stopping.calls(loop.stop)
    with sender:
        if _wait_for_schema(database, loop):
            log.info("ready")
            loop.run()
    log.info("stopped")
    database.close()
    return STOPPED


def _wait_for_schema(database: Database, loop: DeliveryLoop) -> bool:
    """Return once the store is there with a schema that will do; False if told to stop before."""
    while not loop.stopping.is_set():
        try:
            database.check()
        except StorageUnavailable as error:
            log.warning("waiting for the database", error=str(error))
            loop.stopping.wait(RETRY_SECONDS)
        else:
            return True
    return False


if __name__ == "__main__":
    end_process(main())
