"""``Prefer: wait=N`` (RFC 7240): how long a client would like a read to wait for a job's end."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_WAIT_SECONDS = 60
"""The longest wait granted, below the idle timeout of common proxies."""

_WAIT = re.compile(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:;.*)?', re.IGNORECASE)


def preferred_wait(headers: Iterable[str]) -> int | None:
    """Seconds to wait, at most :data:`MAX_WAIT_SECONDS`; None if no header asks for it.

    A preference is a wish: one that can't be read is ignored, as the RFC wants it. The first readable one counts.
    """
    for header in headers:
        for preference in header.split(","):
            if matched := _WAIT.fullmatch(preference):
                return min(int(matched[1]), MAX_WAIT_SECONDS)
    return None
