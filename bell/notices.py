"""The message that jobs have ended, with the results of some of them: how it is written and read.

It is a JSON object. Its keys are the ids of the jobs, and the value of each is a result, or ``null``. The bell does not
read a result, which is just a text for it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence

MESSAGE_BYTES = 32_000
"""The most bytes of one message. That is far below the size of every buffer it passes: a line on a local socket has
64 KiB at most, and Redis drops a subscriber that is some megabytes behind.
"""

READ_BYTES = 65_536
"""A longer message is not read: no part of the service sends one."""

MAX_ID_CHARACTERS = 64
"""An id that is longer is no job's. Ids are remembered for a while, so their length bounds the memory for them."""

logger = logging.getLogger(__name__)


def write_notices(job_ids: Sequence[str], results: Mapping[str, str] | None = None) -> Iterator[bytes]:
    """Yield messages that announce these jobs. A result that alone is too long for a message is left out."""
    found = results or {}
    parts: list[bytes] = []
    size = 0
    for job_id in job_ids:
        part = _entry(job_id, found.get(job_id))
        if len(part) + 2 > MESSAGE_BYTES:
            part = _entry(job_id, None)
        if parts and size + len(part) + 2 > MESSAGE_BYTES:
            yield b"{%b}" % b",".join(parts)
            parts, size = [], 0
        parts.append(part)
        size += len(part) + 1
    if parts:
        yield b"{%b}" % b",".join(parts)


def _entry(job_id: str, result: str | None) -> bytes:
    return f"{json.dumps(job_id)}:{json.dumps(result)}".encode()


def read_notices(message: object) -> dict[str, str | None]:
    """Return the ended jobs in a decoded message, each with its result if it has one. Raises ValueError."""
    if not isinstance(message, dict):
        raise ValueError("a notice must be an object")
    return {
        job_id: result if isinstance(result, str) else None
        for job_id, result in message.items()
        if len(job_id) <= MAX_ID_CHARACTERS
    }


def decode_notices(data: bytes) -> dict[str, str | None]:
    """Return the ended jobs in a message. One that can't be read is logged, and counts as one without jobs."""
    if len(data) > READ_BYTES:
        logger.warning("a notice of %d bytes is too long and is ignored", len(data))
        return {}
    try:
        return read_notices(json.loads(data))
    except (ValueError, RecursionError) as error:
        logger.warning("a notice can't be read and is ignored: %s", error)
        return {}
