"""Opens traces, if the environment asks for them. Otherwise nothing that makes spans is imported."""

from __future__ import annotations

from collections.abc import Callable

from settings.telemetry import TracingError, TracingSettings
from telemetry.tracing import Tracer


def open_tracer(settings: TracingSettings, role: str) -> Tracer | None:
    """Return what makes the spans of this process, or None if no traces are asked for.

    role: of the process. Raises TracingError.
    """
    if not settings.exporters:
        return None
    try:
        make: Callable[[TracingSettings, str], Tracer]
        from telemetry.spans import make_tracer as make
    except ImportError as error:
        raise TracingError(
            f"the OTEL_* variables ask for traces, but {error.name or 'a package'} is not installed: "
            "install the extra `telemetry`, or set OTEL_TRACES_EXPORTER=none"
        ) from error
    return make(settings, role)
