"""Handing work to a worker: whole groups, most urgent first, under a lease."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Insert, Integer, Row, Select, Update, and_, bindparam, func, insert, select, update

from checkpoints.card import ModelCard
from jobs.queue.fair_shares import in_class, next_lanes, settle
from jobs.queue.read import FOR_WORKER, has_waiting, serving
from jobs.store.codec import TOKEN_BYTES, unpack_ids, unpack_options
from jobs.store.database import Database
from jobs.store.identifiers import new_batch_id
from jobs.store.records import Claim, JobStatus
from jobs.store.tables import WAITING, ChunkState, batches, chunk_inputs, chunks, jobs, prefixes
from scoring.layout import ChunkWork, GroupWork, Rows
from scoring.work import prefill_work

MAX_CHUNKS = 1_024
"""Chunks in one batch at most: it bounds every transaction that handles a batch."""
WHOLE_GROUPS = 32
"""So many groups after the first are gathered from the whole backlog, the others from its urgent end only."""
MOST_LANES = 64
"""Tenants whose work one claim looks through at most."""
FEW_CHUNKS = 16
"""A backlog or a lane with fewer is read in one query."""
TRIES = 5
PAUSE_SECONDS = 0.005


def claim(
    db: Database,
    worker_id: str,
    card: ModelCard,
    budget_tokens: int,
    max_chunks: int = MAX_CHUNKS,
    *,
    interactive_only: bool = False,
) -> Claim | None:
    """Claim waiting chunks for a worker, up to a budget of tokens; None if none wait.

    The tokens are those of :mod:`scoring.work`: of all rows, and of each group's prefix once.

    card: what the worker serves. What was tokenised for another tokenizer, or is more than its model takes, waits for a
    worker that can. It is the turn of the tenant of which the least was claimed so far (:mod:`jobs.queue.fair_shares`),
    then of others while the budget lasts. A tenant's most urgent chunk comes first, with all that waits of its group
    (prefix), then further groups in the order of their most urgent chunk. A first chunk larger than the budget comes
    alone. Of concurrent claims each chunk goes to one.

    What is interactive is never claimed together with what is not: it would wait for it. interactive_only: take nothing
    else, however urgent.
    """
    for attempt in range(TRIES):
        # A crash of the database may undo the claim; then its batch id is unknown, and the fence keeps its work out.
        with db.write(durable=False, in_order=True) as connection:
            choice = _choose(connection, card, budget_tokens, max_chunks, interactive_only)
            claimed = _take(connection, db, worker_id, card.name, choice) if choice.chunks else None
        if claimed is not None:
            return claimed
        # Other claimants may hold for a moment what they look at and will not take.
        if attempt + 1 == TRIES or not has_waiting(db, card, interactive_only=interactive_only):
            break
        time.sleep(PAUSE_SECONDS)
    return None


_Group = tuple[list[Row[Any]], int]
"""Chunks that share a prefix, and what that takes to compute."""


class _Chosen(NamedTuple):
    """A chunk to take, and what it takes, in tokens, its prefix included if it is the first of its group."""

    id: int
    tenant: str
    cost: int


@dataclass(slots=True)
class _Choice:
    """What a claim takes, all of it interactive or nothing.

    unknown: tenants with work whose lane may be closed; empty: those without, whose lane is open.
    """

    chunks: list[_Chosen] = field(default_factory=list)
    interactive: bool = False
    unknown: set[str] = field(default_factory=set)
    empty: list[str] = field(default_factory=list)


def _choose(
    connection: Connection, card: ModelCard, budget_tokens: int, max_chunks: int, interactive_only: bool
) -> _Choice:
    """What to take, with its rows locked where the database locks rows."""
    choice = _Choice()
    limit = max_chunks
    for rows, prefix_tokens in _candidates(connection, card, max_chunks, interactive_only, choice):
        # Only the first group may be cut short: what is left of another would wait while its query is forgotten.
        if choice.chunks and prefix_tokens + sum(row.token_count for row in rows) > budget_tokens:
            break
        to_prefill = prefix_tokens
        for row in rows:
            cost = row.token_count + to_prefill
            if choice.chunks and cost > budget_tokens:
                return choice
            # A chunk of a batch that was lost comes with fewer neighbours the next time.
            room = min(limit, row.batch_limit or limit)
            if len(choice.chunks) >= room:
                continue
            choice.chunks.append(_Chosen(row.id, row.tenant, cost))
            limit = room
            to_prefill = 0
            budget_tokens -= cost
            if len(choice.chunks) == limit:  # and no further candidate is looked for
                return choice
    return choice


def _candidates(
    connection: Connection, card: ModelCard, count: int, interactive_only: bool, choice: _Choice
) -> Iterator[_Group]:
    """Waiting chunks, lane by lane and group by group, more than ``count`` of a lane if it has them. A generator: what
    the budget does not reach is not looked for. Notes in ``choice`` what it finds of lanes.
    """
    urgent = _waiting(connection, card, FEW_CHUNKS, interactive=True if interactive_only else None)
    if not urgent:
        return
    head = urgent[0]
    choice.interactive = head.interactive
    turns = next_lanes(connection, card.name, interactive=head.interactive, limit=MOST_LANES)
    if head.tenant not in turns:
        # Work that the version before accepted, or lanes full of work for other workers: there is work all the same.
        choice.unknown.add(head.tenant)
        turns.append(head.tenant)
    for tenant in turns:
        empty = True
        of_lane = [row for row in urgent if (row.tenant, row.interactive) == (tenant, head.interactive)]
        for group in (
            _groups(of_lane)
            if len(urgent) < FEW_CHUNKS  # then this is all there is
            else _of_lane(connection, card, count, tenant, head.interactive, of_lane[0] if of_lane else None)
        ):
            empty = False
            yield group
        if empty:
            choice.empty.append(tenant)


def _of_lane(
    connection: Connection, card: ModelCard, count: int, tenant: str, interactive: bool, head: Row[Any] | None
) -> Iterator[_Group]:
    """The groups of one lane. head: its most urgent chunk, if that is known."""

    def waiting(limit: int, *, of_group: int | None = None, of_others: int | None = None) -> list[Row[Any]]:
        return _waiting(
            connection, card, limit, interactive=interactive, tenant=tenant, of_group=of_group, of_others=of_others
        )

    if interactive:
        # No group whole: a group's members are found among what may be a large backlog of others.
        yield from _groups(waiting(count))
        return
    if head is None:
        few = waiting(FEW_CHUNKS)
        if len(few) < FEW_CHUNKS:
            yield from _groups(few)
            return
        head = few[0]
    yield from _groups(waiting(count, of_group=head.prefix_id))
    urgent = waiting(count, of_others=head.prefix_id)
    backlog_goes_on = len(urgent) == count
    for place, (rows, prefix_tokens) in enumerate(_groups(urgent)):
        whole = backlog_goes_on and place < WHOLE_GROUPS
        yield waiting(count, of_group=rows[0].prefix_id) if whole else rows, prefix_tokens


def _waiting(
    connection: Connection, card: ModelCard, limit: int, *, interactive: bool | None, **which: str | int | None
) -> list[Row[Any]]:
    """Chunks that a worker could take, the most urgent first, locked: those that others have locked are passed over.

    interactive: None for either; which: conditions of :func:`_select_waiting` by name, None for none.
    """
    values = {name: value for name, value in which.items() if value is not None}
    statement = _select_waiting(interactive, frozenset(values))
    return list(connection.execute(statement, {"limit": limit} | serving(card) | values))


@cache
def _select_waiting(interactive: bool | None, which: frozenset[str]) -> Select[Any]:
    conditions = {
        "tenant": chunks.c.tenant == bindparam("tenant"),
        "of_group": chunks.c.prefix_id == bindparam("of_group"),
        "of_others": chunks.c.prefix_id != bindparam("of_others"),
    }
    columns = chunks.c["id", "tenant", "prefix_id", "interactive", "token_count", "batch_limit"]
    # Of a prefix's bytes only the number is read.
    prefix_bytes = select(func.length(prefixes.c.tokens)).where(prefixes.c.id == chunks.c.prefix_id).scalar_subquery()
    return (
        select(*columns, prefix_bytes.label("prefix_bytes"))
        .where(FOR_WORKER, *(() if interactive is None else (in_class(interactive),)))
        .where(*(conditions[name] for name in sorted(which)))
        .order_by(chunks.c.due_at, chunks.c.id)
        .limit(bindparam("limit", type_=Integer))
        .with_for_update(skip_locked=True)
    )


def _groups(rows: Iterable[Row[Any]]) -> list[_Group]:
    """Chunks by prefix, in the order of each group's first."""
    groups: dict[int, list[Row[Any]]] = {}
    for row in rows:
        groups.setdefault(row.prefix_id, []).append(row)
    return [(rows, prefill_work(rows[0].prefix_bytes // TOKEN_BYTES)) for rows in groups.values()]


def _take(connection: Connection, db: Database, worker_id: str, model: str, choice: _Choice) -> Claim | None:
    """Make the chosen chunks one batch. Where rows can't be locked, compare-and-set decides who gets a chunk."""
    batch_id = new_batch_id()
    rows = {
        row.id: row
        for row in connection.execute(
            _UPDATE_TAKEN, {"chunk_ids": [chunk.id for chunk in choice.chunks], "in_batch": batch_id}
        )
    }
    if not rows:
        return None
    _start_jobs(connection, db, {row.job_id for row in rows.values()})
    connection.execute(db.built(_insert_batch), {"id": batch_id, "worker_id": worker_id})
    taken = [chunk for chunk in choice.chunks if chunk.id in rows]
    work = _load(connection, {chunk.id: rows[chunk.id].prefix_id for chunk in taken})
    tokens: Counter[str] = Counter()
    for chunk in taken:
        tokens[chunk.tenant] += chunk.cost
    settle(connection, db, model, tokens, choice.unknown, choice.empty, interactive=choice.interactive)
    return Claim(batch_id, work, choice.interactive)


_UPDATE_TAKEN = (
    update(chunks)
    .where(chunks.c.id.in_(bindparam("chunk_ids", expanding=True)), WAITING)
    .values(state=ChunkState.CLAIMED.value, batch_id=bindparam("in_batch"))
    .returning(chunks.c.id, chunks.c.job_id, chunks.c.prefix_id)
)


def _insert_batch(db: Database) -> Insert:
    return insert(batches).values(lease_until=db.now + db.settings.lease_seconds)


def _start_jobs(connection: Connection, db: Database, job_ids: Iterable[str]) -> None:
    # A claim holds chunks already, so it must not wait for a job. One that is locked is being started by another
    # claim, or is at its end; should it stay queued all the same, the first finished chunk starts it.
    connection.execute(db.built(_update_started), {"job_ids": list(job_ids)})


def _update_started(db: Database) -> Update:
    queued = (
        select(jobs.c.id)
        .where(jobs.c.id.in_(bindparam("job_ids", expanding=True)), jobs.c.status == JobStatus.QUEUED.value)
        .with_for_update(key_share=True, skip_locked=True)
        .cte("queued")
    )
    is_queued = jobs.c.id.in_(select(queued.c.id))
    return update(jobs).where(is_queued).values(status=JobStatus.RUNNING.value, started_at=db.now)


def _load(connection: Connection, prefix_of: Mapping[int, int]) -> tuple[GroupWork, ...]:
    """Read the work itself. prefix_of: the prefix of each chunk, group by group; the order is kept."""
    # Where prefixes are shared, one group may have chunks of several tenants, apart from each other.
    groups: dict[int, list[int]] = {}
    for chunk_id, prefix_id in prefix_of.items():
        groups.setdefault(prefix_id, []).append(chunk_id)
    # A prefix may be long: only one chunk of its group brings it along.
    bearers = {prefix_id: chunk_ids[0] for prefix_id, chunk_ids in groups.items()}
    found = connection.execute(_SELECT_WORK, {"chunk_ids": list(prefix_of), "bearer_ids": list(bearers.values())})
    rows = {row.id: row for row in found}
    prefix = {prefix_id: rows[chunk_id] for prefix_id, chunk_id in bearers.items()}
    return tuple(
        GroupWork(
            key=f"{prefix[prefix_id].tenant}:{prefix[prefix_id].tokenizer_fingerprint}:{prefix[prefix_id].sha256}",
            prefix=unpack_ids(prefix[prefix_id].tokens),
            chunks=tuple(
                ChunkWork(
                    id=row.id,
                    rows=Rows.from_bytes(row.rows),
                    label_token_ids=tuple(unpack_ids(row.label_token_ids).tolist()),
                    head=unpack_options(row.options).head,
                )
                for row in (rows[chunk_id] for chunk_id in chunk_ids)
            ),
        )
        for prefix_id, chunk_ids in groups.items()
    )


_SELECT_WORK = (
    select(
        chunks.c.id,
        chunk_inputs.c.rows,
        *jobs.c["label_token_ids", "options"],
        *prefixes.c["tokens", "tenant", "tokenizer_fingerprint", "sha256"],
    )
    .join(chunk_inputs, chunk_inputs.c.chunk_id == chunks.c.id)
    .join(jobs, jobs.c.id == chunks.c.job_id)
    .outerjoin(
        prefixes,
        and_(prefixes.c.id == chunks.c.prefix_id, chunks.c.id.in_(bindparam("bearer_ids", expanding=True))),
    )
    .where(chunks.c.id.in_(bindparam("chunk_ids", expanding=True)))
)
