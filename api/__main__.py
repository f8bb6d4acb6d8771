"""The API as a process: ``python -m api``."""

from __future__ import annotations

import os
import signal
import socket
import sys

import structlog
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from api.application import create_app
from api.service import Service
from checkpoints.files import ModelFilesError
from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.delivery import DeliverySettings
from settings.engine import EngineSettings
from settings.jobs import StoreSettings
from settings.keys import KeySettings
from settings.logs import configure_logs
from settings.scoring import ScoringSettings
from settings.unknown import warn_of_unknown_variables
from settings.webhooks import WebhookSettings

SHUTDOWN_SECONDS = 10
"""How long requests in progress get to finish. Waiting ones are answered at once; their jobs go on."""

log = structlog.stdlib.get_logger("api")


class Server(uvicorn.Server):
    """uvicorn, which would otherwise wait at shutdown for requests that wait for jobs."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer waiting requests as if their time was up, then shut down."""
        app: FastAPI = self.config.app  # type: ignore[assignment]
        service: Service = app.state.service
        service.waiters.stop()
        await super().shutdown(sockets)


def main() -> int:
    """Serve until stopped. Returns the exit status: 1, after one line, where the process can't start."""
    configure_logs()
    warn_of_unknown_variables(os.environ)
    # It would advise to install PyTorch, which has no business here, in lines that are no JSON.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # The model may have to be downloaded first, in threads that an orderly exit would wait for.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    try:
        settings = ApiSettings()
        app = create_app(
            api=settings,
            scoring=ScoringSettings(),
            store=StoreSettings(),
            bell=BellSettings(),
            webhooks=WebhookSettings(),
            keys=KeySettings(),
            sweep_seconds=EngineSettings().sweep_seconds,
            secret_overlap_seconds=DeliverySettings().webhook_secret_overlap_seconds,
        )
    except (ModelFilesError, ValidationError, ValueError) as error:
        log.error("can't start", reason=str(error))
        return 1
    # uvicorn raises the signal that stopped it once more when it is done: being stopped is not a failure.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    Server(config).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
