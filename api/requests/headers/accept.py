"""The header ``Accept``: in which of two forms a client wants an answer."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import Request

MAX_ENTRIES = 64
"""How many media types of the header are looked at. Browsers name fewer than ten."""


def names(request: Request, wanted: str) -> bool:
    """Return whether a client names a media type, whatever else it takes."""
    return wanted in (entry.partition(";")[0].strip().lower() for entry in _entries(request))


def prefers(request: Request, wanted: str, other: str) -> bool:
    """Return whether a client names a media type, and wants it more than the other one.

    Programs that take anything (``*/*``) name nothing, so they get the other one. Browsers name ``text/html``.
    """
    qualities = _qualities(_entries(request))
    return qualities.get(wanted, 0.0) > qualities.get(other, 0.0)


def _entries(request: Request) -> list[str]:
    """Return the first entries of the header. Anybody may send thousands of them, before anybody knows who asks."""
    return ",".join(request.headers.getlist("accept")).split(",", MAX_ENTRIES)[:MAX_ENTRIES]


def _qualities(entries: Iterable[str]) -> dict[str, float]:
    """Return how much a client wants each media type that it names, from 0 to 1. What can't be read counts as 0."""
    found = {}
    for entry in entries:
        media_type, *parameters = (part.strip().lower() for part in entry.split(";", MAX_ENTRIES)[:MAX_ENTRIES])
        quality = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        found[media_type] = float(quality) if _is_quality(quality) else 0.0
    return found


def _is_quality(text: str) -> bool:
    return len(text) <= 5 and text.replace(".", "", 1).isdecimal() and text.isascii()
