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
KEY_BYTES = 32  # of a new secret; as long as the hash, beyond which length adds no strength
MIN_KEY_BYTES, MAX_KEY_BYTES = 24, 64  # the limits of the specification


def new_secret() -> str:
    """Return a new random secret in the form that receivers are given."""
    return PREFIX + base64.b64encode(randomness.token_bytes(KEY_BYTES)).decode()


def sign(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header ``webhook-signature``: one signature for each secret, so that a receiver may have any of them.

    timestamp: Unix seconds of this attempt, as in the header ``webhook-timestamp``. Raises ValueError if there is no
    secret, a secret is malformed, or the id contains a full stop, which would make the signed text ambiguous.
    """
    if not secrets:
        raise ValueError("there is no secret to sign with")
    if not message_id or "." in message_id:
        raise ValueError(f"{message_id!r} can't be signed: an id is not empty and has no full stop")
    content = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(_key(secret), content, hashlib.sha256) for secret in secrets)
    return " ".join(f"{VERSION},{base64.b64encode(digest).decode()}" for digest in digests)


def _key(secret: str) -> bytes:
    """Decode a secret. The error message never contains the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValueError(
            f"a secret is {PREFIX} and the base64 of {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, and this is not"
        )
    return key
