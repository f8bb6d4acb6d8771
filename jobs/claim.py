"""Handing work to a worker: whole groups, most urgent first, under a lease."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, func, insert, select, text, update

from jobs.database import Database
from jobs.identifiers import new_batch_id
from jobs.packing import TOKEN_BYTES, unpack_ids, unpack_options
from jobs.reading import has_waiting, takes
from jobs.records import Claim, JobStatus
from jobs.tables import WAITING, ChunkState, batches, chunk_inputs, chunks, jobs, prefixes
from scoring.layout import ChunkWork, GroupWork, Rows
from scoring.model_card import ModelCard
from scoring.work import prefill_work

MAX_CHUNKS = 1_024
"""Chunks in one batch at most: it bounds every transaction that handles a batch."""
WHOLE_GROUPS = 8
"""So many groups after the first are gathered from the whole backlog, the others from its urgent end only."""
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
    worker that can. The most urgent chunk comes first, with all that waits of its group (prefix), then further groups
    in the order of their most urgent chunk. A first chunk larger than the budget comes alone. Of concurrent claims each
    chunk goes to one.

    What is interactive is never claimed together with what is not: it would wait for it. interactive_only: take nothing
    else, however urgent.
    """
    for attempt in range(TRIES):
        # A crash of the database may undo the claim; then its batch id is unknown, and the fence keeps its work out.
        with db.write(durable=False) as connection:
            chosen = _choose(connection, card, budget_tokens, max_chunks, interactive_only)
            claimed = _take(connection, db, worker_id, chosen) if chosen else None
        if claimed is not None:
            return claimed
        # Other claimants may hold for a moment what they look at and will not take.
        if attempt + 1 == TRIES or not has_waiting(db, card, interactive_only=interactive_only):
            break
        time.sleep(PAUSE_SECONDS)
    return None


def _choose(
    connection: Connection, card: ModelCard, budget_tokens: int, max_chunks: int, interactive_only: bool
) -> list[int]:
    """The ids of the chunks to take, with their rows locked where the database locks rows."""
    if connection.dialect.name == "postgresql":
        # One query may fill most of the backlog. Told so by its statistics, the planner would rather sort the table
        # than read the head of an index, the longer the backlog the slower.
        connection.execute(text("SET LOCAL enable_sort TO off"))
    chosen: list[int] = []
    groups: set[int] = set()
    limit = max_chunks
    for row, prefix_tokens in _candidates(connection, card, max_chunks, interactive_only):
        cost = row.token_count + (0 if row.prefix_id in groups else prefix_tokens)
        if chosen and cost > budget_tokens:
            break
        # A chunk of a batch that was lost comes with fewer neighbours the next time.
        room = min(limit, row.batch_limit or limit)
        if len(chosen) >= room:
            continue
        chosen.append(row.id)
        limit = room
        groups.add(row.prefix_id)
        budget_tokens -= cost
        if len(chosen) == limit:  # and no further candidate is looked for
            break
    return chosen


def _candidates(
    connection: Connection, card: ModelCard, count: int, interactive_only: bool
) -> Iterator[tuple[Row[Any], int]]:
    """Waiting chunks, group by group, more than ``count`` of them if the backlog has them, each with what its prefix
    takes. A generator: groups that the budget does not reach are not looked for.
    """

    def waiting(limit: int, *which: ColumnElement[bool]) -> list[Row[Any]]:
        return list(
            connection.execute(
                select(
                    chunks.c.id, chunks.c.prefix_id, chunks.c.token_count, chunks.c.batch_limit, chunks.c.interactive
                )
                .where(WAITING, takes(card), *which)
                .order_by(chunks.c.due_at, chunks.c.id)
                .limit(limit)
                .with_for_update(skip_locked=True)
            )
        )

    head = [] if interactive_only else waiting(1)
    if interactive_only or (head and head[0].interactive):
        # Of its own index, and no group whole: a group's members are found among what may be a large backlog of others.
        found = _groups(waiting(count, chunks.c.interactive))
        prefix_tokens = _prefix_tokens(connection, found)
        for group, rows in found.items():
            yield from ((row, prefix_tokens[group]) for row in rows)
        return
    if not head:
        return
    first = head[0].prefix_id
    (tokens,) = _prefix_tokens(connection, [first]).values()
    yield from ((row, tokens) for row in waiting(count, ~chunks.c.interactive, chunks.c.prefix_id == first))
    urgent = waiting(count, ~chunks.c.interactive, chunks.c.prefix_id != first)
    backlog_goes_on = len(urgent) == count
    found = _groups(urgent)
    prefix_tokens = _prefix_tokens(connection, found)
    for place, (group, rows) in enumerate(found.items()):
        whole = backlog_goes_on and place < WHOLE_GROUPS
        rows = waiting(count, ~chunks.c.interactive, chunks.c.prefix_id == group) if whole else rows
        yield from ((row, prefix_tokens[group]) for row in rows)


def _groups(rows: Iterable[Row[Any]]) -> dict[int, list[Row[Any]]]:
    """Chunks by prefix, in the order of each group's first."""
    groups: dict[int, list[Row[Any]]] = {}
    for row in rows:
        groups.setdefault(row.prefix_id, []).append(row)
    return groups


def _prefix_tokens(connection: Connection, prefix_ids: Iterable[int]) -> dict[int, int]:
    """What prefixes take to compute. Of their bytes only the number is read."""
    size = func.length(prefixes.c.tokens).label("size")
    found = connection.execute(select(prefixes.c.id, size).where(prefixes.c.id.in_(list(prefix_ids))))
    return {row.id: prefill_work(row.size // TOKEN_BYTES) for row in found}


def _take(connection: Connection, db: Database, worker_id: str, chosen: list[int]) -> Claim | None:
    """Make the chosen chunks one batch. Where rows can't be locked, compare-and-set decides who gets a chunk."""
    batch_id = new_batch_id()
    taken = {
        row.id: row
        for row in connection.execute(
            update(chunks)
            .where(chunks.c.id.in_(chosen), WAITING)
            .values(state=ChunkState.CLAIMED.value, batch_id=batch_id)
            .returning(chunks.c.id, chunks.c.job_id, chunks.c.interactive)
        )
    }
    if not taken:
        return None
    connection.execute(
        insert(batches).values(id=batch_id, worker_id=worker_id, lease_until=db.now + db.settings.lease_seconds)
    )
    _start_jobs(connection, db, {row.job_id for row in taken.values()})
    work = _load(connection, [chunk_id for chunk_id in chosen if chunk_id in taken])
    return Claim(batch_id, work, interactive=all(row.interactive for row in taken.values()))


def _start_jobs(connection: Connection, db: Database, job_ids: Iterable[str]) -> None:
    # A claim holds chunks already, so it must not wait for a job. One that is locked is being started by another
    # claim, or is at its end; should it stay queued all the same, the first finished chunk starts it.
    queued = (
        select(jobs.c.id)
        .where(jobs.c.id.in_(list(job_ids)), jobs.c.status == JobStatus.QUEUED.value)
        .with_for_update(key_share=True, skip_locked=True)
    )
    connection.execute(
        update(jobs)
        .where(jobs.c.id.in_(list(connection.scalars(queued))))
        .values(status=JobStatus.RUNNING.value, started_at=db.now)
    )


def _load(connection: Connection, chunk_ids: list[int]) -> tuple[GroupWork, ...]:
    """Read the work itself. chunk_ids: group by group; the order is kept."""
    rows = {
        row.id: row
        for row in connection.execute(
            select(chunks.c.id, chunks.c.prefix_id, chunk_inputs.c.rows, jobs.c.label_token_ids, jobs.c.options)
            .join(chunk_inputs, chunk_inputs.c.chunk_id == chunks.c.id)
            .join(jobs, jobs.c.id == chunks.c.job_id)
            .where(chunks.c.id.in_(chunk_ids))
        )
    }
    ordered = [rows[chunk_id] for chunk_id in chunk_ids]
    stored = {
        row.id: row
        for row in connection.execute(select(prefixes).where(prefixes.c.id.in_({row.prefix_id for row in ordered})))
    }
    return tuple(
        GroupWork(
            key=f"{stored[prefix_id].tenant}:{stored[prefix_id].tokenizer_fingerprint}:{stored[prefix_id].sha256}",
            prefix=unpack_ids(stored[prefix_id].tokens),
            chunks=tuple(
                ChunkWork(
                    id=row.id,
                    rows=Rows.from_bytes(row.rows),
                    label_token_ids=tuple(unpack_ids(row.label_token_ids).tolist()),
                    head=unpack_options(row.options).head,
                )
                for row in members
            ),
        )
        for prefix_id, members in groupby(ordered, key=lambda row: row.prefix_id)
    )
