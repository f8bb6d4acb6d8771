"""Structured logs: one JSON object per line on stderr, for the service and its libraries."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Literal, TextIO

import structlog
from pydantic import Field

from settings.errors.endings import Ending
from settings.errors.mistakes import SettingError
from settings.slice import SettingsSlice


class _Writer:
    """Writes the service's own lines where a handler of logging writes those of libraries, and in turn with it."""

    def __init__(self, handler: logging.StreamHandler[TextIO], name: str | None = None) -> None:
        self.name = name  # of the logger; the processors read it
        self._handler = handler

    def msg(self, line: str) -> None:
        """Write a line. If nobody reads it any more, it is lost, as logging would lose it."""
        handler = self._handler
        handler.acquire()
        try:
            with suppress(OSError, ValueError):
                handler.stream.write(f"{line}\n")
                handler.stream.flush()
        finally:
            handler.release()

    debug = info = warning = error = critical = exception = msg


class LogSettings(SettingsSlice):
    """What is logged."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="the least important lines that are logged; `warning` leaves out the line of each request"
    )


def configure_logs(level: int | None = None, *, fields: Mapping[str, object] | None = None) -> None:
    """Send the output of structlog and logging through one JSON formatter. To be called by entry points only.

    level: None: the one in the settings. A process whose setting is wrong ends. fields: what every line has, by name.
    """
    if level is None:
        try:
            level = logging.getLevelNamesMapping()[LogSettings().log_level.upper()]
        except SettingError as error:
            configure_logs(logging.INFO, fields=fields)
            structlog.stdlib.get_logger("settings").error("can't start", reason=str(error))
            sys.exit(Ending.MISCONFIGURED)
    always = dict(fields or {})

    def add_fields(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**event, **always}

    shared: list[structlog.typing.Processor] = [
        add_fields,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[structlog.typing.Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    handler = logging.StreamHandler(sys.stderr)
    # The service's own lines do not pass through logging, where the line for a request would take more than twice as
    # much processor time.
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=partial(_Writer, handler),
        cache_logger_on_first_use=True,
    )
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    # httpx2 logs the URL of every request. A signed URL is a secret, so it must not be logged.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    # alembic lists its plugins when it is imported, which some processes do only after this.
    logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)
    # It names the dialect whenever the revision of the schema is read.
    logging.getLogger("alembic.runtime.migration").setLevel(logging.WARNING)
