"""What senders are set to here, where receivers are on loopback, and what they are given to send."""

from __future__ import annotations

from ipaddress import ip_network

from settings.webhooks import WebhookSettings

HEADERS = {"content-type": "application/json", "webhook-id": "msg_1"}
BODY = b'{"type":"job.succeeded"}'
OPENED = WebhookSettings(webhook_allowed_networks=(ip_network("127.0.0.0/8"),))
HASTY = OPENED.model_copy(update={"webhook_timeout_seconds": 0.5, "webhook_connect_seconds": 0.4})
MANY_SECONDS = 10.0
"""Long past the limits of the hasty, and sooner than anything else would end."""
