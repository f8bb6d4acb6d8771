"""Settings and messages for senders whose receivers are on loopback."""

from __future__ import annotations

from ipaddress import ip_network

from settings.webhooks import WebhookSettings

HEADERS = {"content-type": "application/json", "webhook-id": "msg_1"}
BODY = b'{"type":"job.succeeded"}'
OPENED = WebhookSettings(webhook_allowed_networks=(ip_network("127.0.0.0/8"),))
IMPATIENT = OPENED.model_copy(update={"webhook_timeout_seconds": 0.5, "webhook_connect_seconds": 0.4})
MANY_SECONDS = 10.0
"""Longer than the limits of IMPATIENT, and shorter than any other limit."""
