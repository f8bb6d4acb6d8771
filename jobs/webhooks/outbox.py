"""The event of a job's end: one delivery, stored in the transaction that ends the job."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, insert

from jobs.store.database import Transaction
from jobs.store.identifiers import new_message_id
from jobs.store.records import JobStatus
from jobs.store.webhook_events import Event, Webhook
from jobs.webhooks.tables import DeliveryState, webhook_deliveries
from public_api.paths import job_urls


def pack_webhook(webhook: Webhook | None) -> dict[str, Any] | None:
    """Return what the job's row stores of a webhook."""
    return None if webhook is None else {"url": webhook.url, "host": webhook.host, "events": list(webhook.events)}


def unpack_webhook(stored: dict[str, Any] | None) -> Webhook | None:
    """The inverse of :func:`pack_webhook`."""
    if stored is None:
        return None
    return Webhook(stored["url"], stored["host"], tuple(map(Event, stored["events"])))


def store_deliveries(tx: Transaction, ended: Iterable[Row[Any]], status: JobStatus) -> None:
    """Store the deliveries of jobs that have just ended, in one statement, or none if no job has a webhook.

    ended: rows with the columns id, tenant, webhook, finished_at and remove_at of the jobs.
    """
    event = f"job.{status}"
    rows = [
        {
            "id": new_message_id(),
            "job_id": job.id,
            "tenant": job.tenant,
            "event": event,
            "url": job.webhook["url"],
            "host": job.webhook["host"],
            "body": event_body(event, job.id, status, job.finished_at),
            "state": DeliveryState.PENDING.value,
            "due_at": job.finished_at,
            "attempts": 0,
            "failures": 0,
            "created_at": job.finished_at,
            "remove_at": job.remove_at,
        }
        for job in ended
        if job.webhook is not None and event in job.webhook["events"]
    ]
    if rows:
        tx.execute(_INSERT, rows)


_INSERT = insert(webhook_deliveries)


def event_body(event: str, job_id: str, status: JobStatus, at: float) -> bytes:
    """Return the body of an event, the thin payload of Standard Webhooks: what happened, when, and where to read more.

    at: Unix seconds.
    """
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    data = {"id": job_id, "status": str(status), "urls": job_urls(job_id)}
    return json.dumps({"type": event, "timestamp": moment, "data": data}, separators=(",", ":")).encode()
