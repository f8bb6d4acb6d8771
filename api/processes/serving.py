"""Run the server of one process, which serves the port alone or as one of several."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence

import structlog

from api.application import create_app
from api.callers.authentication import NoKeysError
from api.processes.listening import PortError, reserve
from api.server.open_files import connections_that_fit
from api.server.server import Server
from api.server.starting import Starting
from api.siblings import Siblings
from checkpoints.files import CheckpointError
from scoring.templates.wording import TemplateError
from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.errors.endings import Ending, in_one_line
from settings.errors.mistakes import SettingError, setting_error
from settings.keys import KeySettings
from settings.limits import LimitSettings
from settings.scoring import ScoringSettings
from settings.store import StoreSettings
from settings.telemetry import TelemetrySettings, TracingError, TracingSettings
from settings.webhooks import WebhookSettings
from telemetry.opening import open_tracer

SHUTDOWN_SECONDS = 10
"""How long requests in progress may take to finish."""

log = structlog.stdlib.get_logger("api")


def serve(
    sockets: Sequence[socket.socket], *, starting: Starting | None = None, siblings: Siblings | None = None
) -> int:
    """Serve until stopped, and return the exit code. If the process can't start, one line in the log says why.

    sockets: that are bound already; without any, the port of the settings is served. starting: what answers on them
    meanwhile. siblings: the processes that serve the port, too; None if this one serves it alone.
    """
    # transformers would otherwise advise to install PyTorch, in lines that are not JSON.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # An orderly exit would wait for the threads that may download the model now.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    try:
        settings = ApiSettings()
        scoring = ScoringSettings()
        app = create_app(
            api=settings,
            limits=_limits(1 if siblings is None else siblings.count),
            scoring=scoring,
            store=StoreSettings(),
            bell=BellSettings(),
            webhooks=WebhookSettings(),
            keys=KeySettings(),
            telemetry=TelemetrySettings(),
            siblings=siblings,
            tracer=open_tracer(TracingSettings.read(), "api"),
        )
    except CheckpointError as error:
        return _refuse(setting_error("model", scoring.model, in_one_line(error)))
    except TemplateError as error:
        return _refuse(setting_error("template", scoring.template or "", in_one_line(error)))
    except (SettingError, NoKeysError, TracingError) as error:
        return _refuse(error)
    # uvicorn raises the signal that stopped it again when it has shut down; that is not a failure.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    # A full collection walks all objects and holds the interpreter's lock: with those of the libraries for a tenth of a
    # second, whenever a client's body has made enough new ones. So the objects that stay for good are exempted.
    gc.collect()
    gc.freeze()
    if not sockets:
        try:
            reserve(settings.host, settings.port).close()
        except PortError as error:
            log.error("can't start", reason=str(error))
            return Ending.FAILED
    Server(
        app,
        settings.host,
        settings.port,
        shutdown_seconds=SHUTDOWN_SECONDS,
        drain_seconds=settings.drain_seconds,
        starting=starting,
        siblings=siblings,
    ).run(list(sockets) or None)
    return 0


def _refuse(error: Exception) -> int:
    """Say why the process can't start, and return its exit code."""
    log.error("can't start", reason=in_one_line(error))
    return Ending.MISCONFIGURED


def _limits(processes: int) -> LimitSettings:
    """Return the limits of this process, which is one of so many. Raises SettingError."""
    limits = LimitSettings().divided_among(processes)
    fitting = connections_that_fit(limits.max_connections)
    if fitting < limits.max_connections:
        log.warning("the limit of open files leaves room for fewer connections", connections=fitting)
        limits = limits.model_copy(update={"max_connections": fitting})
    return limits
