"""Webhooks are verified as Standard Webhooks has it, with its own package as the judge."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook

from scoreline import UntrustedWebhook, verify_webhook

SECRET, OTHER = "whsec_" + "c2VjcmV0" * 4, "whsec_" + "b3RoZXIh" * 4
BODY = b'{"type":"job.succeeded","timestamp":"2026-01-01T00:00:00.000Z","data":{"id":"job_1","status":"succeeded"}}'
NOW = 1_800_000_000


def signed(secret: str = SECRET, body: bytes = BODY, at: int = NOW) -> dict[str, str]:
    """Return the headers of a webhook."""
    signature = Webhook(secret).sign("msg_1", datetime.fromtimestamp(at, UTC), body.decode())
    return {"Webhook-Id": "msg_1", "Webhook-Timestamp": str(at), "Webhook-Signature": signature}


def test_the_event_of_a_signed_webhook_is_returned() -> None:
    event = verify_webhook(BODY, signed(), SECRET, now=NOW)
    assert (event.id, event.type, event.subject_id, event.status) == ("msg_1", "job.succeeded", "job_1", "succeeded")
    assert event.timestamp == "2026-01-01T00:00:00.000Z"
    assert verify_webhook(BODY, signed().items(), [OTHER, SECRET], now=NOW + 299) == event
    both = signed() | {"Webhook-Signature": f"v1,bm8= {signed(OTHER)['Webhook-Signature']}"}
    assert verify_webhook(BODY, both, OTHER, now=NOW) == event


@pytest.mark.parametrize(
    ("headers", "body", "secret", "now", "reason"),
    [
        (signed(), BODY + b" ", SECRET, NOW, "signature"),
        (signed(), BODY, OTHER, NOW, "signature"),
        (signed() | {"Webhook-Id": "msg_2"}, BODY, SECRET, NOW, "signature"),
        (signed() | {"Webhook-Signature": ""}, BODY, SECRET, NOW, "signature"),
        (signed() | {"Webhook-Signature": "v1,é \ud800"}, BODY, SECRET, NOW, "signature"),
        (signed(), BODY, SECRET, NOW + 301, "about now"),
        (signed(), BODY, SECRET, NOW - 301, "about now"),
        (signed() | {"Webhook-Timestamp": "soon"}, BODY, SECRET, NOW, "no number"),
        ({}, BODY, SECRET, NOW, "no number"),
    ],
)
def test_what_was_not_signed_or_not_recently_is_refused(
    headers: dict[str, str], body: bytes, secret: str, now: float, reason: str
) -> None:
    with pytest.raises(UntrustedWebhook, match=reason):
        verify_webhook(body, headers, secret, now=now)


@pytest.mark.parametrize("secret", ["", "c2VjcmV0", "whsec_?"])
def test_a_secret_that_is_none_is_a_mistake_of_the_receiver(secret: str) -> None:
    with pytest.raises(ValueError, match="whsec_"):
        verify_webhook(BODY, signed(), secret, now=NOW)
