"""Webhooks end to end: an API, a delivery loop with the real sender, and receivers on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from standardwebhooks.webhooks import Webhook

from jobs.store.database import Database
from settings.delivery import DeliverySettings
from settings.store import StoreSettings
from settings.webhooks import WebhookSettings
from tests.api.serving import DEADLINE_SECONDS, Json, RunningApi, eventually, running_api
from webhooks.sending import Sender
from workers.delivery.loop import DeliveryLoop

LOOPBACK = "127.0.0.0/8"
EMPTY_JOB: Json = {"query": "a", "items": [], "label_token_ids": [70]}
"""A job without items, which succeeds when it is accepted."""


@contextmanager
def delivering(database_url: str, **overrides: Any) -> Iterator[DeliveryLoop]:
    """Run a delivery loop in a thread. overrides: values for its settings."""
    fields = WebhookSettings.model_fields
    hooks = {name: value for name, value in overrides.items() if name in fields}
    paces = {name: value for name, value in overrides.items() if name not in fields}
    defaults: dict[str, Any] = {"webhook_allowed_networks": LOOPBACK, "webhook_timeout_seconds": 1.0}
    webhooks = WebhookSettings(**defaults | hooks)
    settings = DeliverySettings(**{"delivery_poll_seconds": 0.02} | paces)
    database = Database.open(StoreSettings(database_url=database_url))
    with Sender(webhooks) as sender:
        loop = DeliveryLoop(database, sender, settings, webhooks.webhook_timeout_seconds)
        thread = threading.Thread(target=loop.run)
        thread.start()
        try:
            yield loop
        finally:
            loop.stop()
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive()
    database.close()


@contextmanager
def delivering_api(model_directory: Path, database_url: str, folder: Path, **overrides: Any) -> Iterator[RunningApi]:
    """Run a server that allows webhooks on loopback, and a delivery loop."""
    with (
        running_api(model_directory, database_url, folder, webhook_allowed_networks=LOOPBACK) as (api, _),
        delivering(database_url, **overrides),
    ):
        yield api


def submit_with_webhook(api: RunningApi, url: str, **body: Any) -> str:
    """Submit a job with a webhook that ends at once. Returns its id."""
    return str(api.submit(**EMPTY_JOB, webhook={"url": url}, **body)["id"])


def deliveries(api: RunningApi, job_id: str) -> list[Json]:
    """Return the deliveries of a job as the API shows them."""
    response = api.client.get(f"/v1/jobs/{job_id}/deliveries")
    assert response.status_code == 200, response.text
    data: list[Json] = response.json()["data"]
    return data


def delivery_when(api: RunningApi, job_id: str, condition: Callable[[Json], object], what: str) -> Json:
    """Return the delivery of a job when it meets a condition."""
    found: list[Json] = []

    def holds() -> bool:
        found[:] = deliveries(api, job_id)
        return bool(found) and bool(condition(found[0]))

    eventually(holds, what)
    return found[0]


def after_attempts(api: RunningApi, job_id: str, count: int = 1) -> Json:
    """Return the delivery of a job when its log has at least ``count`` attempts."""
    return delivery_when(api, job_id, lambda delivery: len(delivery["attempts"]) >= count, f"{count} attempts")


def secrets(api: RunningApi) -> list[str]:
    """Return the valid secrets, the current one first."""
    return [one["secret"] for one in api.client.get("/v1/webhook-secrets").json()["data"]]


def parse_request(request: bytes) -> tuple[dict[str, str], bytes]:
    """Return the headers of a received request, with names in lower case, and its body."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}, body


def verified(secret: str, request: bytes) -> Json:
    """Verify the signature of a request with an independent implementation, which may raise, and return the event."""
    headers, body = parse_request(request)
    Webhook(secret).verify(body, headers)
    event: Json = json.loads(body)
    return event
