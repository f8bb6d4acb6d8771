"""The registry of workers: workers register here, and the front end reads which models are served."""

from __future__ import annotations

from sqlalchemy import ColumnElement, delete, select, update

from checkpoints.card import ModelCard
from jobs.store.clock import NOW
from jobs.store.database import Database
from jobs.store.records import WorkerRecord
from jobs.store.tables import workers
from jobs.store.upsert import insert


def register(db: Database, worker: WorkerRecord) -> None:
    """Register a worker, or register it again."""
    row = {
        "model": worker.card.name,
        "context_length": worker.card.context_length,
        "vocabulary": worker.card.vocabulary,
        "tokenizer_fingerprint": worker.card.tokenizer_fingerprint,
        "delimiter": worker.card.delimiter,
        "weights_fingerprint": worker.weights_fingerprint,
        "device": worker.device,
        "dtype": worker.dtype,
        "started_at": NOW,
        "last_seen": NOW,
        "tokens_per_second": worker.tokens_per_second,
        "planning": worker.planning,
        "estimate_ratio": worker.estimate_ratio,
    }
    with db.write() as tx:
        tx.execute(
            insert(workers).values(id=worker.id, **row).on_conflict_do_update(index_elements=[workers.c.id], set_=row)
        )


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
    return [
        WorkerRecord(
            id=row.id,
            card=ModelCard(row.model, row.context_length, row.vocabulary, row.tokenizer_fingerprint, row.delimiter),
            weights_fingerprint=row.weights_fingerprint,
            device=row.device,
            dtype=row.dtype,
            started_at=row.started_at,
            last_seen=row.last_seen,
            tokens_per_second=row.tokens_per_second,
            planning=row.planning,
            estimate_ratio=row.estimate_ratio,
        )
        for row in rows
    ]
