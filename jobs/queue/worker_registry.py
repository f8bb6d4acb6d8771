"""The registry of workers: workers register here, and the front end reads which models are served."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import ColumnElement, delete, select, update

from checkpoints.card import ModelCard
from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.records import WorkerRecord
from jobs.store.tables import workers
from jobs.store.upsert import insert


def register(db: Database, worker: WorkerRecord) -> None:
    """Register a worker, or register it again."""
    values = asdict(worker) | asdict(worker.card) | {"model": worker.card.name, "started_at": NOW, "last_seen": NOW}
    row = {column.name: values[column.name] for column in workers.c}
    with db.write() as tx:
        tx.execute(insert(workers).values(row).on_conflict_do_update(index_elements=[workers.c.id], set_=row))


def touch(
    db: Database, worker_id: str, tokens_per_second: float | None = None, estimate_ratio: float | None = None
) -> bool:
    """Record that a worker is alive and, if it has measured that, how fast it scores, also relative to its estimates.

    Return False if it is not registered, so that it registers again.
    """
    found = {"tokens_per_second": tokens_per_second, "estimate_ratio": estimate_ratio}
    measured = {name: value for name, value in found.items() if value is not None}
    with db.write(durable=False) as tx:
        seen = tx.execute(
            update(workers).where(workers.c.id == worker_id).values(last_seen=NOW, **measured).returning(workers.c.id)
        )
        return seen.one_or_none() is not None


def unregister(db: Database, worker_id: str) -> None:
    """Remove a worker."""
    with db.write() as tx:
        tx.execute(delete(workers).where(workers.c.id == worker_id))


def seen_within(db: Database, seconds: float) -> ColumnElement[bool]:
    """Return whether a worker was seen in so many seconds in which it could say that it is live.

    While the database is away no worker can. So the time of an outage that this process has seen does not count.
    """
    return workers.c.last_seen > NOW - seconds - db.outages.unwritten_seconds()


def live_workers(db: Database, fresh_seconds: float) -> list[WorkerRecord]:
    """Return the workers that were seen within the last ``fresh_seconds``, oldest first."""
    with db.read() as tx:
        rows = tx.execute(
            select(workers).where(seen_within(db, fresh_seconds)).order_by(workers.c.started_at, workers.c.id)
        ).all()
    return [_record(row._asdict()) for row in rows]


def live_cards(tx: Transaction, model: str) -> list[ModelCard]:
    """Return the different cards of the live workers of a model. After an outage, some may be missing for a moment."""
    fields_of_card = workers.c["context_length", "vocabulary", "tokenizer_fingerprint", "version"]
    is_live = workers.c.last_seen > NOW - tx.settings.worker_fresh_seconds
    query = select(workers.c.model.label("name"), *fields_of_card).where(workers.c.model == model, is_live)
    return [ModelCard(**row._asdict()) for row in tx.execute(query.distinct())]


def _record(row: dict[str, Any]) -> WorkerRecord:
    # What the fingerprint tells apart has no column.
    card = {field.name: row.pop(field.name) for field in fields(ModelCard)[1:] if field.name in row}
    return WorkerRecord(card=ModelCard(row.pop("model"), **card), **row)
