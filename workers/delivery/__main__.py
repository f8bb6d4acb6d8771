"""The process that delivers webhooks: ``python -m workers.delivery``. Several may run; they need only the database."""

from __future__ import annotations

import os

import structlog

from jobs.store.database import Database
from settings.delivery import DeliverySettings
from settings.errors.endings import Ending
from settings.errors.mistakes import SettingError
from settings.logs import configure_logs
from settings.store import StoreSettings
from settings.telemetry import TracingError, TracingSettings
from settings.unknown import warn_of_unknown_variables
from settings.webhooks import WebhookSettings
from telemetry.opening import open_tracer
from webhooks.sending import Sender
from workers.database_outage import wait_for_database
from workers.delivery.loop import DeliveryLoop
from workers.delivery.metrics import DeliveryMetrics
from workers.stopping import STOPPED, StopSignals, end_process

log = structlog.stdlib.get_logger("delivery")


def main() -> int:
    """Deliver until stopped, then wait for requests that are under way. Returns the exit status."""
    configure_logs()
    warn_of_unknown_variables(os.environ)
    stopping = StopSignals()
    try:
        settings, webhooks = DeliverySettings(), WebhookSettings()
        database = Database.open(StoreSettings())
        sender = Sender(webhooks)
        tracer = open_tracer(TracingSettings.read(), "deliverer")
    except (SettingError, TracingError) as error:
        log.error("can't start", reason=str(error))
        return Ending.MISCONFIGURED
    metrics = DeliveryMetrics()
    if settings.delivery_metrics_port is not None:
        metrics.serve(settings.delivery_metrics_host, settings.delivery_metrics_port)
    loop = DeliveryLoop(database, sender, settings, webhooks.webhook_timeout_seconds, metrics, tracer)
    stopping.on_stop(loop.stop)
    with sender:
        if wait_for_database(database, loop.stopping, log):
            log.info("ready")
            loop.run()
    log.info("stopped")
    if tracer is not None:
        tracer.close()
    database.close()
    return STOPPED


if __name__ == "__main__":
    end_process(main())
