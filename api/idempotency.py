"""Idempotency-Key (IETF draft): sending a request again must not do its work again."""

from __future__ import annotations

import hashlib
import re

from jobs.records import Idempotency
from scoring.errors import ErrorCode, RequestError

REPLAYED = {"Idempotency-Replayed": "true"}
"""The header of an answer about work that an earlier request had started."""

_SANE_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def idempotency_of(key: str | None, route: str, body: bytes) -> Idempotency | None:
    """What makes two requests the same one: the key, the route, and the decoded body byte for byte.

    Raises RequestError ``invalid_request`` for a key that is empty, longer than 255 characters or not printable ASCII.
    """
    if key is None:
        return None
    if not _SANE_KEY.fullmatch(key):
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            "an Idempotency-Key has 1 to 255 printable ASCII characters and no spaces",
            param="Idempotency-Key",
        )
    return Idempotency(key, hashlib.sha256(route.encode() + b"\n" + body).hexdigest())
