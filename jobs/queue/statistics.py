"""How much waits, and since when: what admission and the gauges count."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Float, cast, exists, func, select

from checkpoints.card import ModelCard
from jobs.queue.read import FOR_WORKER, serving
from jobs.store.codec import TOKEN_BYTES
from jobs.store.database import Database
from jobs.store.tables import CLAIMED, WAITING, batches, chunks, jobs, prefixes, workers
from jobs.webhooks.tables import PENDING, webhook_deliveries, webhook_endpoints
from scoring.work import ATTENTION_TOKENS

OVERDUE_DELIVERY_SECONDS = 10.0
"""A webhook that has been due for less is not overdue: whoever sends looks every second or so."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waiting work. tokens: as :mod:`scoring.work` counts, each prefix once; oldest_seconds: for how long the most
    urgent chunk has been due, 0 where it is not due yet or nothing waits.
    """

    chunks: int
    tokens: float
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Queue:
    """Waiting chunks of a model and a class. oldest_seconds: since the job of the first of them was accepted."""

    model: str
    interactive: bool
    chunks: int
    tokens: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Crew:
    """Live workers of a model. tokens_per_second: of all that have measured it."""

    model: str
    workers: int
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The state of the queue at a moment. running_batches: those with unfinished chunks; overdue_deliveries: webhooks
    that could be sent and are not being sent; disabled_endpoints: those to which none is.
    """

    queues: tuple[Queue, ...]
    crews: tuple[Crew, ...]
    running_batches: int
    overdue_deliveries: int
    disabled_endpoints: int


def has_more_than(db: Database, card: ModelCard, waiting: int) -> bool:
    """Whether more chunks than this wait for workers of this model and tokenizer. Raises StorageUnavailable.

    Reads so many entries of an index, and nothing where there can't be as many: ids are given out in turn.
    """
    # Two subqueries: for both in one, SQLite would read the whole index.
    first, last = (select(end(chunks.c.id)).scalar_subquery() for end in (func.min, func.max))
    model, tokenizer = chunks.c.model == card.name, chunks.c.tokenizer_fingerprint == card.tokenizer_fingerprint
    next_one = (
        select(chunks.c.id).where(WAITING, model, tokenizer).order_by(chunks.c.due_at, chunks.c.id).offset(waiting)
    )
    with db.read(in_order=True) as connection:
        if (connection.scalar(select(last - first)) or 0) < waiting:
            return False
        return connection.scalar(next_one.limit(1)) is not None


def count_waiting(db: Database, card: ModelCard, most: int, *, interactive_only: bool) -> Waiting:
    """Count what waits for workers that serve this, of the first ``most`` chunks in the order of claims.

    Beyond ``most`` nothing is read, so that what this costs is bounded, and what it says is too little rather than too
    much. Raises StorageUnavailable.
    """
    wanted = (FOR_WORKER, chunks.c.interactive) if interactive_only else (FOR_WORKER,)
    first = (
        select(chunks.c.prefix_id, chunks.c.token_count, chunks.c.due_at)
        .where(*wanted)
        .order_by(chunks.c.due_at, chunks.c.id)
        .limit(most)
        .cte("first")
    )
    length = cast(func.length(prefixes.c.tokens), Float) / TOKEN_BYTES
    # scoring.work.prefill_work, in SQL: only the lengths of what may be many prefixes are read, and nothing is sent.
    shared = (
        select(func.sum(length * (1 + length / (2 * ATTENTION_TOKENS))))
        .where(prefixes.c.id.in_(select(first.c.prefix_id)))
        .scalar_subquery()
    )
    counted = select(func.count(), func.sum(first.c.token_count), shared, db.now - func.min(first.c.due_at))
    with db.read(in_order=True) as connection:
        waiting, own, prefill, overdue = connection.execute(counted.select_from(first), serving(card)).one()
    return Waiting(int(waiting), float(own or 0) + float(prefill or 0), max(0.0, overdue or 0.0))


def queue_figures(db: Database, fresh_seconds: float) -> Figures:
    """Count all of it: for gauges, every few seconds at most. Raises StorageUnavailable.

    fresh_seconds: a worker not seen for so long is not live.
    """
    per_class = (
        select(
            chunks.c.model,
            chunks.c.interactive,
            func.count().label("chunks"),
            func.sum(chunks.c.token_count).label("tokens"),
            func.min(chunks.c.id).label("first_id"),
        )
        .where(WAITING)
        .group_by(chunks.c.model, chunks.c.interactive)
        .subquery("per_class")
    )
    queues = (
        select(per_class, (db.now - jobs.c.created_at).label("age"))
        .join(chunks, chunks.c.id == per_class.c.first_id)
        .join(jobs, jobs.c.id == chunks.c.job_id)
    )
    crews = (
        select(workers.c.model, func.count().label("workers"), func.sum(workers.c.tokens_per_second).label("rate"))
        .where(workers.c.last_seen > db.now - fresh_seconds)
        .group_by(workers.c.model)
    )
    held = exists().where(chunks.c.batch_id == batches.c.id, CLAIMED)
    running = select(func.count()).select_from(batches).where(batches.c.lease_until > db.now, held)
    late = db.now - OVERDUE_DELIVERY_SECONDS
    overdue = select(func.count()).select_from(webhook_deliveries).where(PENDING, webhook_deliveries.c.due_at < late)
    disabled = select(func.count()).where(webhook_endpoints.c.disabled_at.is_not(None))
    with db.read() as connection:
        return Figures(
            queues=tuple(
                Queue(row.model, row.interactive, row.chunks, int(row.tokens), max(0.0, row.age))
                for row in connection.execute(queues)
            ),
            crews=tuple(Crew(row.model, row.workers, row.rate or 0.0) for row in connection.execute(crews)),
            running_batches=int(connection.scalar(running) or 0),
            overdue_deliveries=int(connection.scalar(overdue) or 0),
            disabled_endpoints=int(connection.scalar(disabled) or 0),
        )
