"""What a job's end has to say to whoever asked: one delivery, stored in the transaction that ends the job."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, insert

from jobs.store.identifiers import new_message_id
from jobs.store.records import Event, JobStatus, Webhook
from jobs.webhooks.tables import DeliveryState, webhook_deliveries


def pack_webhook(webhook: Webhook | None) -> dict[str, Any] | None:
    """For the job's row."""
    return None if webhook is None else {"url": webhook.url, "host": webhook.host, "events": list(webhook.events)}


def unpack_webhook(stored: dict[str, Any] | None) -> Webhook | None:
    """The inverse of :func:`pack_webhook`."""
    if stored is None:
        return None
    return Webhook(stored["url"], stored["host"], tuple(map(Event, stored["events"])))


def job_path(job_id: str) -> str:
    """Where the API has a job."""
    return f"/v1/jobs/{job_id}"


def job_urls(job_id: str) -> dict[str, str]:
    """What belongs to a job, in the job object and in an event's body."""
    path = job_path(job_id)
    return {
        "self": path,
        "scores": f"{path}/scores",
        "cancel": f"{path}/cancel",
        "deliveries": f"{path}/deliveries",
    }


def store_deliveries(connection: Connection, ended: Iterable[Row[Any]], status: JobStatus) -> None:
    """Store the deliveries of jobs that have just ended. ended: rows with what a delivery takes from its job.

    One statement, and none where nobody asked.
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
        connection.execute(_INSERT, rows)


_INSERT = insert(webhook_deliveries)


def event_body(event: str, job_id: str, status: JobStatus, at: float) -> bytes:
    """The body of an event (Standard Webhooks' thin payload): what happened, when, and where to read the rest."""
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    data = {"id": job_id, "status": str(status), "urls": job_urls(job_id)}
    return json.dumps({"type": event, "timestamp": moment, "data": data}, separators=(",", ":")).encode()
