"""Structured logs: one JSON object per line on stderr, for the service and its libraries."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

import structlog


def configure_logs(level: int = logging.INFO, *, fields: Mapping[str, object] | None = None) -> None:
    """Send the output of structlog and logging through one JSON formatter. To be called by entry points only.

    fields: what every line has, by name.
    """
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
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
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
