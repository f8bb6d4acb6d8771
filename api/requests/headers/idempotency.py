"""``Idempotency-Key`` (IETF draft-ietf-httpapi-idempotency-key-header): a repeated request must not repeat its work."""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import Header

from jobs.store.records import Idempotency

REPLAYED = {"Idempotency-Replayed": "true"}
"""The headers of a response about work that was accepted by an earlier request."""

KEY_PATTERN = r"^[\x21-\x7e]{1,255}$"

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=KEY_PATTERN,
        description="1 to 255 printable ASCII characters: makes it safe to send the request again",
    ),
]
"""The type of a route's parameter that is the request's key. Its pattern rejects invalid keys."""


def idempotency_of(key: str | None, route: str, body: bytes) -> Idempotency | None:
    """Return what identifies a request: its key, and the hash of its route and decoded body."""
    if key is None:
        return None
    hasher = body_hasher(route)
    hasher.update(body)
    return Idempotency(key, hasher.hexdigest())


def body_hasher(route: str) -> hashlib._Hash:
    """Return a hash object for the decoded bytes of a body of this route."""
    return hashlib.sha256(route.encode() + b"\n")
