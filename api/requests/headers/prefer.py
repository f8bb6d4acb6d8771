"""Parse ``Prefer`` (RFC 7240): ``wait=N``, how long a read waits for a job's end, and ``handling=strict``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated

from fastapi import Header, Request

from api.request_id import add_headers

MAX_WAIT_SECONDS = 60
"""The longest wait, below the idle timeout of common proxies."""

MAX_PREFERENCES = 64
"""How many preferences of a header are looked at."""

_WAIT = re.compile(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:;.*)?', re.IGNORECASE)
_HANDLING = re.compile(r'\s*handling\s*=\s*"?(strict|lenient)"?\s*(?:;.*)?', re.IGNORECASE)


def preferred_wait(headers: Iterable[str]) -> int | None:
    """Return the seconds to wait, at most :data:`MAX_WAIT_SECONDS`, or None if no header asks for it."""
    found = next(_matches(_WAIT, headers), None)
    return None if found is None else min(int(found[1]), MAX_WAIT_SECONDS)


def prefers_strict(headers: Iterable[str]) -> bool:
    """Return whether unknown fields are to be refused."""
    found = next(_matches(_HANDLING, headers), None)
    return found is not None and found[1].lower() == "strict"


def _matches(pattern: re.Pattern[str], headers: Iterable[str]) -> Iterator[re.Match[str]]:
    """Yield the preferences of one kind. The first one counts. Invalid ones are ignored, as the RFC requires."""
    for header in headers:
        for preference in header.split(",", MAX_PREFERENCES)[:MAX_PREFERENCES]:
            if matched := pattern.fullmatch(preference):
                yield matched


Handling = Annotated[
    str | None,
    Header(alias="Prefer", description="`handling=strict`: refuse unknown fields, which otherwise cause a warning"),
]
"""The type of a route's parameter that is the header, for routes that read bodies."""


def is_strict(request: Request, handling: str | None) -> bool:
    """Return whether a body's unknown fields are to be refused, and if so, have the answer say that they were."""
    strict = handling is not None and prefers_strict(request.headers.getlist("prefer"))
    if strict:
        add_headers(request.scope, {"Preference-Applied": "handling=strict"})
    return strict
