"""New identifiers: ordered by time where they are listed, unguessable where they are a fence."""

from __future__ import annotations

import secrets
import time


def new_job_id() -> str:
    """Return ``job_`` and a UUIDv7 (RFC 9562) in hexadecimal. In the order of their ids, jobs are ordered by time."""
    return f"job_{_uuid7():032x}"


def new_message_id() -> str:
    """Return ``msg_`` and a UUIDv7: the ``webhook-id`` of a delivery."""
    return f"msg_{_uuid7():032x}"


def new_file_id() -> str:
    """Return ``file_`` and a UUIDv7. In the order of their ids, files are ordered by time."""
    return f"file_{_uuid7():032x}"


def new_file_batch_id() -> str:
    """Return ``batch_`` and a UUIDv7. In the order of their ids, batches of files are ordered by time."""
    return f"batch_{_uuid7():032x}"


def _uuid7() -> int:
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & (1 << 48) - 1) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76  # version 7
    return value & ~(0x3 << 62) | 0x2 << 62  # variant of RFC 9562


def new_batch_id() -> str:
    """Return 128 random bits. A counter could repeat a value, if a failover loses the commit that raised it."""
    return secrets.token_hex(16)


def new_notice_key() -> bytes:
    """Return 128 random bits, with which a worker signs the result of a call in the notice of its end."""
    return secrets.token_bytes(16)
