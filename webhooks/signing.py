"""Signatures of Standard Webhooks 1.0, symmetric: HMAC-SHA256 over ``id.timestamp.body``."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets as randomness
from collections.abc import Sequence

PREFIX = "whsec_"
VERSION = "v1"
KEY_BYTES = 32
"""Of a new secret: as many as the hash has, so that more would add nothing."""

SHORTEST_KEY_BYTES, LONGEST_KEY_BYTES = 24, 64
"""What the specification allows."""


def new_secret() -> str:
    """A secret that nobody can guess, in the form in which its receiver is given it."""
    return PREFIX + base64.b64encode(randomness.token_bytes(KEY_BYTES)).decode()


def sign(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of ``webhook-signature``: a signature for each secret, so that a receiver may have any of them.

    timestamp: Unix seconds of this attempt, as ``webhook-timestamp`` says it; body: the bytes that are sent.
    Raises ValueError for what can't be signed: no secret, one of another form, an id in which a full stop would move
    the limit between it and the timestamp.
    """
    if not secrets:
        raise ValueError("there is no secret to sign with")
    if not message_id or "." in message_id:
        raise ValueError(f"{message_id!r} can't be signed: an id is not empty and has no full stop")
    content = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(_key(secret), content, hashlib.sha256) for secret in secrets)
    return " ".join(f"{VERSION},{base64.b64encode(digest).decode()}" for digest in digests)


def _key(secret: str) -> bytes:
    """The bytes that a secret stands for. The error never tells the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not SHORTEST_KEY_BYTES <= len(key) <= LONGEST_KEY_BYTES:
        raise ValueError(
            f"a secret is {PREFIX} and the base64 of {SHORTEST_KEY_BYTES} to {LONGEST_KEY_BYTES} bytes, and this is not"
        )
    return key
