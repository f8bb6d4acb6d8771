"""Verifying that a webhook was sent by the service, as Standard Webhooks 1.0 has it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scoreline.client.errors import ScorelineError

TOLERANCE_SECONDS = 300
"""Largest age of a request. An older one may have been recorded and sent again by somebody, or the clocks differ."""


class UntrustedWebhook(ScorelineError):  # noqa: N818 (the names of these errors say what has happened)
    """A request that was not sent by the service, or not recently. Answer it with 401."""


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """The end of a job or of a batch, as a webhook tells of it."""

    id: str  # the same in all attempts to deliver it: an event whose id you have seen is no new one
    type: str  # such as "job.succeeded" or "batch.completed"
    timestamp: str  # when it happened, in ISO 8601
    subject_id: str  # of the job or the batch
    status: str  # of the job or the batch at that time
    raw: Mapping[str, Any] = field(repr=False)  # the whole body


def verify_webhook(
    body: bytes,
    headers: Mapping[str, str] | Iterable[tuple[str, str]],
    secrets: str | Iterable[str],
    *,
    tolerance: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> WebhookEvent:
    """Return the event of a webhook that is signed with one of the secrets. Raises UntrustedWebhook.

    body: the bytes as they were received: verify them before anything parses them. headers: those of the request.
    secrets: the service's secret, ``whsec_...``; while secrets are rotated, the old one and the new one. tolerance:
    seconds by which the time of the request may differ from now. now: Unix seconds; None: the present.

    >>> verify_webhook(b"{}", {"webhook-id": "msg_1"}, "whsec_c2VjcmV0")
    Traceback (most recent call last):
        ...
    scoreline.client.signatures.UntrustedWebhook: webhook-timestamp is missing or no number
    """
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    found = {name.lower(): value for name, value in pairs}
    keys = [_key(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    message_id, timestamp = found.get("webhook-id", ""), found.get("webhook-timestamp", "")
    if not re.fullmatch(r"[0-9]{1,12}", timestamp):
        raise _untrusted("webhook-timestamp is missing or no number")
    if abs((time.time() if now is None else now) - int(timestamp)) > tolerance:
        raise _untrusted("webhook-timestamp is not about now")
    content = f"{message_id}.{timestamp}.".encode() + body
    expected = [b"v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)) for key in keys]
    # In constant time: a comparison that ends at the first difference would reveal how much was right.
    given = [signature.encode(errors="replace") for signature in found.get("webhook-signature", "").split()]
    if not any(hmac.compare_digest(one, other) for one in given for other in expected):
        raise _untrusted("webhook-signature is of no secret that is known here")
    event = json.loads(body)
    return WebhookEvent(
        message_id, event["type"], event["timestamp"], event["data"]["id"], event["data"]["status"], event
    )


def _key(secret: str) -> bytes:
    """Return the key in a secret. Raises ValueError for what is no secret: that is a mistake of the receiver."""
    try:
        if secret.startswith("whsec_"):
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        pass
    raise ValueError("a secret of webhooks is `whsec_` and a key in base64, as GET /v1/webhook-secrets shows it")


def _untrusted(message: str) -> UntrustedWebhook:
    return UntrustedWebhook("untrusted_webhook", message)
