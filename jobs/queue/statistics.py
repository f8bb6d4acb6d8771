"""Statistics of the queue, for admission and for gauges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import exists, func, select

from checkpoints.card import ModelCard
from jobs.queue.read import CLAIMABLE, card_parameters
from jobs.queue.worker_registry import seen_within
from jobs.store.clock import NOW
from jobs.store.database import Database
from jobs.store.prefix_work import prefix_work
from jobs.store.tables import CLAIMED, WAITING, batches, chunks, jobs, tenants, workers
from jobs.webhooks.tables import PENDING, webhook_deliveries, webhook_endpoints

OVERDUE_DELIVERY_SECONDS = 10.0  # a delivery is overdue if it was not sent for so long; senders poll every second


@dataclass(frozen=True, slots=True)
class TenantWork:
    """Waiting work of one tenant."""

    chunks: int
    tokens: float  # counted as in scoring.work, each prefix once
    oldest_seconds: float  # how long the tenant's most urgent chunk has been due; 0 if none is due


@dataclass(frozen=True, slots=True)
class WaitingWork:
    """Waiting work of all tenants."""

    of_tenants: Mapping[str, TenantWork]  # of those that have any
    weights: Mapping[str, float]  # of the tenants whose weight is not 1

    @property
    def chunks(self) -> int:
        return sum(work.chunks for work in self.of_tenants.values())

    @property
    def tokens(self) -> float:
        return sum(work.tokens for work in self.of_tenants.values())

    def oldest_seconds(self, tenant: str) -> float:
        """Return how long work has been due: the tenant's own if some of it waits, else that of any tenant."""
        own = self.of_tenants.get(tenant)
        if own is not None:
            return own.oldest_seconds
        return max((work.oldest_seconds for work in self.of_tenants.values()), default=0.0)

    def tokens_ahead(self, tenant: str, new_tokens: float) -> float:
        """Estimate how much work is claimed before new work of a tenant is, by the fair shares of the tenants.

        All waiting work of the same tenant comes first. Meanwhile each other tenant gets as much as its weight allows,
        or all that waits of it if that is less. So a tenant waits for its own backlog, and not for that of another.
        """
        own = self.of_tenants.get(tenant)
        own_tokens = own.tokens if own is not None else 0.0
        per_weight = (own_tokens + new_tokens) / self.weights.get(tenant, 1.0)
        others = (
            min(work.tokens, per_weight * self.weights.get(other, 1.0))
            for other, work in self.of_tenants.items()
            if other != tenant
        )
        return own_tokens + sum(others)


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """Waiting chunks of a model, interactive ones apart."""

    model: str
    interactive: bool
    chunks: int
    tokens: int  # counted as in scoring.work, without prefixes: there may be a million, and this is read at each scrape
    oldest_seconds: float  # since the job of the oldest chunk was accepted


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """Live workers of a model."""

    model: str
    workers: int
    tokens_per_second: float  # sum over the workers that have measured it
    different_weights: int  # fingerprints: with more than one, a job may get scores of each


@dataclass(frozen=True, slots=True)
class Statistics:
    """The state of the queue."""

    queues: tuple[QueueStatistics, ...]
    workers: tuple[WorkerStatistics, ...]
    running_batches: int  # with unfinished chunks, and a lease that has not run out
    overdue_deliveries: int  # see OVERDUE_DELIVERY_SECONDS
    disabled_endpoints: int


def has_more_than(db: Database, most: int, own: tuple[str, str] | None = None) -> bool:
    """Return whether more than ``most`` chunks wait for workers, of all models together, or are staged for them.

    own: a model and a tenant: count the tenant's chunks for this model alone, for whichever version of it.

    Reads up to ``most`` entries of an index, or none if the range of chunk ids shows that there are fewer chunks.
    Raises StorageUnavailable.
    """
    # Of the uploads that go on. While the chunks of a finished one are released, some of them count twice.
    staged_chunks = select(func.sum(jobs.c.remaining_chunks)).where(jobs.c.received_at.is_not(None))
    # Two subqueries, because SQLite reads the whole index for a query with both.
    first, last = (select(end(chunks.c.id)).scalar_subquery() for end in (func.min, func.max))
    # In the order of an index, so that PostgreSQL reads no other chunks.
    waiting = select(chunks.c.id).where(WAITING).order_by(chunks.c.model)
    if own is not None:
        model, tenant = own
        staged_chunks = staged_chunks.where(jobs.c.model == model, jobs.c.tenant == tenant)
        order = chunks.c["interactive", "tokenizer_fingerprint", "due_at", "id"]
        of_flow = (chunks.c.model == model, chunks.c.tenant == tenant)
        waiting = select(chunks.c.id).where(WAITING, *of_flow).order_by(*order)
    with db.read(avoid_sort=True, slow=True) as tx:
        if (tx.scalar(select(last - first)) or 0) < most:
            return False
        staged = int(tx.scalar(staged_chunks) or 0)
        return staged > most or tx.scalar(waiting.offset(most - staged).limit(1)) is not None


def count_waiting(db: Database, card: ModelCard, most: int, *, interactive_only: bool) -> WaitingWork:
    """Count the work that waits for a worker with this card: of the first ``most`` chunks in the order of claims.

    More chunks are not read, so the cost is bounded and the result may be too low. Raises StorageUnavailable.
    """
    wanted = (CLAIMABLE, chunks.c.interactive) if interactive_only else (CLAIMABLE,)
    first = (
        select(*chunks.c["tenant", "prefix_id", "token_count", "due_at"])
        .where(*wanted)
        .order_by(chunks.c.due_at, chunks.c.id)
        .limit(most)
        .cte("first")
    )
    groups = (
        select(
            *first.c["tenant", "prefix_id"],
            func.count().label("chunks"),
            func.sum(first.c.token_count).label("tokens"),
            func.min(first.c.due_at).label("due_at"),
        )
        .group_by(*first.c["tenant", "prefix_id"])
        .subquery("groups")
    )
    of_tenants = select(
        groups.c.tenant,
        func.sum(groups.c.chunks).label("chunks"),
        func.sum(groups.c.tokens + prefix_work(groups.c.prefix_id)).label("tokens"),
        (NOW - func.min(groups.c.due_at)).label("overdue"),
    ).group_by(groups.c.tenant)
    with db.read(avoid_sort=True, slow=True) as tx:
        counted = tx.execute(of_tenants, card_parameters(card)).all()
        weights = tx.execute(select(tenants.c.name, tenants.c.weight).where(tenants.c.weight != 1.0)).all()
    return WaitingWork(
        {row.tenant: TenantWork(int(row.chunks), float(row.tokens), max(0.0, row.overdue)) for row in counted},
        {row.name: row.weight for row in weights},
    )


def read_statistics(db: Database, fresh_seconds: float) -> Statistics:
    """Count everything that waits and runs. It reads whole indexes, so call it every few seconds at most.

    fresh_seconds: a worker not seen for so long is not live. Raises StorageUnavailable.
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
        select(per_class, (NOW - jobs.c.created_at).label("age"))
        .join(chunks, chunks.c.id == per_class.c.first_id)
        .join(jobs, jobs.c.id == chunks.c.job_id)
    )
    live = (
        select(
            workers.c.model,
            func.count().label("workers"),
            func.sum(workers.c.tokens_per_second).label("rate"),
            func.count(workers.c.weights_fingerprint.distinct()).label("weights"),
        )
        .where(seen_within(db, fresh_seconds))
        .group_by(workers.c.model)
    )
    held = exists().where(chunks.c.batch_id == batches.c.id, CLAIMED)
    running = select(func.count()).select_from(batches).where(batches.c.lease_until > NOW, held)
    late = NOW - OVERDUE_DELIVERY_SECONDS
    overdue = select(func.count()).select_from(webhook_deliveries).where(PENDING, webhook_deliveries.c.due_at < late)
    disabled = select(func.count()).where(webhook_endpoints.c.disabled_at.is_not(None))
    with db.read(slow=True) as tx:
        return Statistics(
            queues=tuple(
                QueueStatistics(row.model, row.interactive, row.chunks, int(row.tokens), max(0.0, row.age))
                for row in tx.execute(queues)
            ),
            workers=tuple(
                WorkerStatistics(row.model, row.workers, row.rate or 0.0, row.weights) for row in tx.execute(live)
            ),
            running_batches=int(tx.scalar(running) or 0),
            overdue_deliveries=int(tx.scalar(overdue) or 0),
            disabled_endpoints=int(tx.scalar(disabled) or 0),
        )
