"""Parse ``Prefer: wait=N`` (RFC 7240): how long a client wants a read to wait for a job's end."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_WAIT_SECONDS = 60
"""The longest wait, below the idle timeout of common proxies."""

_WAIT = re.compile(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:;.*)?', re.IGNORECASE)


def preferred_wait(headers: Iterable[str]) -> int | None:
    """Return the seconds to wait, at most :data:`MAX_WAIT_SECONDS`, or None if no header asks for it.

    The first valid preference counts. Invalid ones are ignored, as the RFC requires.
    """
    for header in headers:
        for preference in header.split(","):
            if matched := _WAIT.fullmatch(preference):
                return min(int(matched[1]), MAX_WAIT_SECONDS)
    return None
