"""Idempotency-Key (IETF draft): sending a request again must not do its work again."""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import Header

from jobs.store.records import Idempotency

REPLAYED = {"Idempotency-Replayed": "true"}
"""The header of an answer about work that an earlier request had started."""

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,255}$",
        description="1 to 255 printable ASCII characters: makes it safe to send the request again",
    ),
]
"""A route's parameter of this type is the request's key; one that is not sane is refused by its declaration."""


def idempotency_of(key: str | None, route: str, body: bytes) -> Idempotency | None:
    """What makes two requests the same one: the key, the route, and the decoded body byte for byte."""
    if key is None:
        return None
    hasher = body_hasher(route)
    hasher.update(body)
    return Idempotency(key, hasher.hexdigest())


def body_hasher(route: str) -> hashlib._Hash:
    """What a body of this route is hashed with; it takes the decoded bytes, piece by piece if need be."""
    return hashlib.sha256(route.encode() + b"\n")
