"""The event of the end of a job or a batch: one delivery, stored in the transaction that ends the job or the batch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, insert

from jobs.store.database import Transaction
from jobs.store.identifiers import new_message_id
from jobs.store.records import JobStatus
from jobs.store.webhook_events import BatchEvent, Event, Webhook
from jobs.webhooks.tables import DeliveryState, webhook_deliveries
from public_api.paths import batch_urls, job_urls


def pack_webhook(webhook: Webhook | None) -> dict[str, Any] | None:
    """Return what the job's row stores of a webhook."""
    return None if webhook is None else {"url": webhook.url, "host": webhook.host, "events": list(webhook.events)}


def unpack_webhook(stored: dict[str, Any] | None, event: type[Event] | type[BatchEvent] = Event) -> Webhook | None:
    """The inverse of :func:`pack_webhook`. event: whether it is of a job or of a batch of a file."""
    return None if stored is None else Webhook(stored["url"], stored["host"], tuple(map(event, stored["events"])))


def store_deliveries(tx: Transaction, ended: Iterable[Row[Any]], status: JobStatus) -> None:
    """Store the deliveries of jobs that have just ended, in one statement, or none if no job has a webhook.

    ended: rows with the columns id, tenant, webhook, finished_at, remove_at and traceparent of the jobs.
    """
    event = f"job.{status}"
    rows = [
        _delivery(job, event, event_body(event, job.id, status, job_urls(job.id), job.finished_at), job.finished_at)
        | {"traceparent": job.traceparent}
        for job in ended
        if job.webhook is not None and event in job.webhook["events"]
    ]
    if rows:
        tx.execute(_INSERT, rows)


def store_batch_delivery(tx: Transaction, batch: Row[Any]) -> None:
    """Store the delivery of a batch of a file that has just ended, or none if it has no webhook for this end.

    batch: a row with the columns id, tenant, status, webhook, ended_at and remove_at.
    """
    event = f"batch.{batch.status}"
    if batch.webhook is not None and event in batch.webhook["events"]:
        body = event_body(event, batch.id, batch.status, batch_urls(batch.id), batch.ended_at)
        tx.execute(_INSERT, [_delivery(batch, event, body, batch.ended_at)])


def _delivery(of: Row[Any], event: str, body: bytes, at: float) -> dict[str, Any]:
    """Return the row of a delivery. of: the job or batch that has ended; at: when."""
    return {
        "id": new_message_id(),
        "job_id": of.id,
        "tenant": of.tenant,
        "event": event,
        "url": of.webhook["url"],
        "host": of.webhook["host"],
        "body": body,
        "state": DeliveryState.PENDING.value,
        "due_at": at,
        "attempts": 0,
        "failures": 0,
        "created_at": at,
        "remove_at": of.remove_at,
    }


_INSERT = insert(webhook_deliveries)


def event_body(event: str, ended_id: str, status: str, urls: dict[str, str], at: float) -> bytes:
    """Return the body of an event, the thin payload of Standard Webhooks: what happened, when, and where to read more.

    at: Unix seconds.
    """
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    data = {"id": ended_id, "status": str(status), "urls": urls}
    return json.dumps({"type": event, "timestamp": moment, "data": data}, separators=(",", ":")).encode()
