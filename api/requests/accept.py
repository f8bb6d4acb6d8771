"""The header ``Accept``: in which of two forms a client wants an answer."""

from __future__ import annotations

from fastapi import Request
from starlette.datastructures import Headers


def prefers(request: Request, wanted: str, other: str) -> bool:
    """Return whether a client names a media type, and wants it more than the other one.

    Programs that take anything (``*/*``) name nothing, so they get the other one. Browsers name ``text/html``.
    """
    qualities = _qualities(request.headers)
    return qualities.get(wanted, 0.0) > qualities.get(other, 0.0)


def _qualities(headers: Headers) -> dict[str, float]:
    """Return how much a client wants each media type that it names, from 0 to 1. What can't be read counts as 0."""
    found = {}
    for entry in ",".join(headers.getlist("accept")).split(","):
        media_type, *parameters = (part.strip().lower() for part in entry.split(";"))
        quality = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        found[media_type] = float(quality) if _is_quality(quality) else 0.0
    return found


def _is_quality(text: str) -> bool:
    return len(text) <= 5 and text.replace(".", "", 1).isdecimal() and text.isascii()
