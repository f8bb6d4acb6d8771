"""Run the API as a process: ``python -m api``."""

from __future__ import annotations

import gc
import os
import signal
import sys

import structlog
from pydantic import ValidationError

from api.application import create_app
from api.server.open_files import connections_that_fit
from api.server.server import Server
from checkpoints.files import CheckpointError
from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.jobs import StoreSettings
from settings.keys import KeySettings
from settings.limits import LimitSettings
from settings.logs import configure_logs
from settings.scoring import ScoringSettings
from settings.unknown import warn_of_unknown_variables
from settings.webhooks import WebhookSettings

SHUTDOWN_SECONDS = 10
"""How long requests in progress may take to finish. Requests that wait for a job are answered at once."""

log = structlog.stdlib.get_logger("api")


def main() -> int:
    """Serve until stopped, and return the exit status: 1, after one line in the log, if the process can't start."""
    configure_logs()
    warn_of_unknown_variables(os.environ)
    # transformers would otherwise advise to install PyTorch, in lines that are not JSON.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # An orderly exit would wait for the threads that may download the model now.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    try:
        settings = ApiSettings()
        limits = LimitSettings()
        fitting = connections_that_fit(limits.max_connections)
        if fitting < limits.max_connections:
            log.warning("the limit of open files leaves room for fewer connections", connections=fitting)
            limits = limits.model_copy(update={"max_connections": fitting})
        app = create_app(
            api=settings,
            limits=limits,
            scoring=ScoringSettings(),
            store=StoreSettings(),
            bell=BellSettings(),
            webhooks=WebhookSettings(),
            keys=KeySettings(),
        )
    except (CheckpointError, ValidationError, ValueError) as error:
        log.error("can't start", reason=str(error))
        return 1
    # uvicorn raises the signal that stopped it again when it has shut down; that is not a failure.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    # A full collection walks all objects and holds the interpreter's lock: with those of the libraries for a tenth of a
    # second, whenever a client's body has made enough new ones. So the objects that stay for good are exempted.
    gc.collect()
    gc.freeze()
    Server(app, settings.host, settings.port, shutdown_seconds=SHUTDOWN_SECONDS).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
