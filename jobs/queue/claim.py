"""Claiming: a worker gets whole groups of chunks, the most urgent first, under a lease."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import CTE, Integer, Row, Select, Update, and_, bindparam, func, or_, select, update

from checkpoints.card import ModelCard
from jobs.queue.fair_shares import (
    charging,
    count_of_open_flows,
    is_of_class,
    next_flows,
    turn_of_flow,
    update_flows,
)
from jobs.queue.lease import granting
from jobs.queue.read import CLAIMABLE, card_parameters, has_waiting
from jobs.store.clock import NOW
from jobs.store.codec import TOKEN_BYTES, unpack_ids, unpack_options
from jobs.store.database import Database, DeadlockError, Transaction
from jobs.store.identifiers import new_batch_id
from jobs.store.lists import is_one_of
from jobs.store.records import Claim, JobStatus, Origin
from jobs.store.tables import ChunkState, chunk_inputs, chunks, idempotency_keys, jobs, prefixes
from scoring.layout import ChunkWork, GroupWork, Rows
from scoring.work import work_of_prefix

MAX_CHUNKS = 1_024  # in one batch: this bounds every transaction that handles a batch
WHOLE_GROUPS = 32  # groups after the first that are gathered from the whole backlog, not only from its urgent end
MAX_FLOWS = 64  # flows that one claim searches
FEW_CHUNKS = 128  # a backlog or a flow with fewer chunks is read in one query
TRIES = 5
PAUSE_SECONDS = 0.005  # between two tries


def claim(
    db: Database,
    worker_id: str,
    card: ModelCard,
    budget_tokens: int,
    max_chunks: int = MAX_CHUNKS,
    *,
    interactive_only: bool = False,
    after_interactive: bool = False,
    without: Collection[str] | None = None,
) -> Claim | None:
    """Claim waiting chunks for a worker; return None if there is none that it can score.

    card: what the worker serves; chunks with ids of another tokenizer, or too large for its model, keep waiting.
    budget_tokens: how much work may be claimed, counted as in :mod:`scoring.work`: all rows, and once for each group
    its prefix. If the first chunk is larger than the budget, it is claimed alone.

    Flows are served in the order of :mod:`jobs.queue.fair_shares` while the budget lasts. In each flow, the group (the
    chunks with the same prefix) that holds the most urgent chunk comes first. The other groups follow, in the order of
    their most urgent chunks. A chunk is never claimed twice, however many workers claim at once.

    A batch is either all interactive or not interactive at all, because interactive chunks would have to wait for the
    others. With ``interactive_only`` only interactive chunks are claimed, even if others are more urgent. With
    ``after_interactive``, because the worker's last claim was interactive and left work behind, this claim is not
    interactive if a tenant without interactive work waits for its turn. So a backlog of interactive work delays the
    other work of its own tenant, and that of another tenant by one claim.

    With ``without``, only interactive chunks of other tenants than these are claimed, and only what fits the budget. It
    is for a claim that makes longer interactive work wait.
    """
    interactive_only = interactive_only or without is not None
    for attempt in range(TRIES):
        try:
            # A crash of the database may undo a claim. The fence then rejects its scores, as the batch id is unknown.
            with db.write(durable=False, avoid_sort=True) as tx:
                choice = _choose(tx, card, budget_tokens, max_chunks, interactive_only, after_interactive, without)
                claimed = _take(tx, worker_id, card.name, choice) if choice.chunks else None
        except DeadlockError:
            # The charges of two claims can wait for each other, although both lock the flows in one order: PostgreSQL
            # takes a further lock for a row that was changed while a transaction that adds work has locked it.
            if attempt + 1 == TRIES:
                raise
            continue
        if claimed is not None:
            return claimed
        # Other claims lock more rows than they take, and release them a moment later.
        # A claim of short work alone leaves other work behind, which is no reason to try again.
        if attempt + 1 == TRIES or without is not None or not has_waiting(db, card, interactive_only=interactive_only):
            break
        time.sleep(PAUSE_SECONDS)
    return None


_Group = tuple[list[Row[Any]], int]  # chunks that share a prefix, and the work of computing that prefix, in tokens


class _Chosen(NamedTuple):
    """A chunk to claim."""

    id: int
    prefix_id: int
    tenant: str
    cost: int  # its work in tokens, with the work of its prefix if it is the first chunk of its group


@dataclass(slots=True)
class _Choice:
    """What a claim takes, and what it learned about flows while it looked for it."""

    chunks: list[_Chosen] = field(default_factory=list)
    interactive: bool = False  # of all chosen chunks
    seen: int = 0  # waiting chunks that the first query found; if fewer than FEW_CHUNKS, these are all that wait
    maybe_closed: bool = False  # whether the flow of any chosen chunk may be closed
    empty: list[str] = field(default_factory=list)  # tenants without work whose flow is open


def _choose(
    tx: Transaction,
    card: ModelCard,
    budget_tokens: int,
    max_chunks: int,
    interactive_only: bool,
    after_interactive: bool,
    without: Collection[str] | None,
) -> _Choice:
    """Choose the chunks to claim. Their rows are locked on PostgreSQL; SQLite has locked everything."""
    choice = _Choice()
    limit = max_chunks
    if without is None:
        candidates = _candidates(tx, card, max_chunks, interactive_only, after_interactive, choice)
    else:
        candidates = _of_others(tx, card, without, choice)
    for rows, prefix_tokens in candidates:
        # Only the first group may be split. The rest of a group that is claimed later computes its prefix again.
        if choice.chunks and prefix_tokens + sum(row.token_count for row in rows) > budget_tokens:
            break
        to_prefill = prefix_tokens
        for row in rows:
            cost = row.token_count + to_prefill
            if without is not None and cost > budget_tokens:
                continue
            if choice.chunks and cost > budget_tokens:
                return choice
            # After a batch was lost, each of its chunks limits the size of the next batch it is in.
            room = min(limit, row.batch_limit or limit)
            if len(choice.chunks) >= room:
                continue
            choice.chunks.append(_Chosen(row.id, row.prefix_id, row.tenant, cost))
            limit = room
            to_prefill = 0
            budget_tokens -= cost
            if len(choice.chunks) == limit:  # return now, before the generator sends its next query
                return choice
    return choice


def _candidates(
    tx: Transaction,
    card: ModelCard,
    count: int,
    interactive_only: bool,
    after_interactive: bool,
    choice: _Choice,
) -> Iterator[_Group]:
    """Yield waiting chunks, flow by flow and group by group, and note in ``choice`` what is learned about flows.

    This is a generator, so that nothing is read after the budget is spent. count: how many chunks are read at most, of
    one group or of all other groups of a flow.
    """
    urgent = _waiting(tx, card, FEW_CHUNKS, interactive=True if interactive_only else None)
    if not urgent:
        return
    choice.seen = len(urgent)
    if len(urgent) < FEW_CHUNKS:
        yield from _of_all(tx, card, urgent, after_interactive, choice)
        return
    head = urgent[0]
    if head.interactive and after_interactive:
        head = _head_of_a_tenant_without_interactive_work(tx, card) or head
    choice.interactive = head.interactive
    turns = next_flows(tx, card.name, interactive=head.interactive, limit=MAX_FLOWS)
    if head.tenant not in turns:
        # Its flow is closed, because an older version accepted the work, or more than MAX_FLOWS flows come before it.
        choice.maybe_closed = True
        turns.append(head.tenant)
    for tenant in turns:
        empty = True
        of_flow = (row for row in urgent if (row.tenant, row.interactive) == (tenant, head.interactive))
        for group in _of_flow(tx, card, count, tenant, head.interactive, next(of_flow, None)):
            empty = False
            yield group
        if empty:
            choice.empty.append(tenant)


def _of_all(
    tx: Transaction, card: ModelCard, waiting: list[Row[Any]], after_interactive: bool, choice: _Choice
) -> Iterator[_Group]:
    """Do what :func:`_candidates` does, when all waiting chunks have been read."""
    head = waiting[0]
    if head.interactive and after_interactive:
        busy = {row.tenant for row in waiting if row.interactive}
        others = (row for row in waiting if not row.interactive and row.tenant not in busy)
        head = min(others, key=_turn, default=head)
    choice.interactive = head.interactive
    of_flow: dict[str, list[Row[Any]]] = {}
    for row in sorted((row for row in waiting if row.interactive == head.interactive), key=_turn):
        of_flow.setdefault(row.tenant, []).append(row)
    found_open = sum(rows[0].turn is not None for rows in of_flow.values())
    choice.maybe_closed = found_open < len(of_flow)
    for rows in of_flow.values():
        yield from _groups(rows)
    if found_open < head.open_flows:
        turns = next_flows(tx, card.name, interactive=head.interactive, limit=MAX_FLOWS)
        choice.empty += [tenant for tenant in turns if tenant not in of_flow]


def _of_others(tx: Transaction, card: ModelCard, without: Collection[str], choice: _Choice) -> Iterator[_Group]:
    """Yield the most urgent interactive groups of the open flows, but for those of these tenants."""
    choice.interactive = True
    for tenant in next_flows(tx, card.name, interactive=True, limit=MAX_FLOWS):
        if tenant not in without:
            yield from _groups(_waiting(tx, card, FEW_CHUNKS, interactive=True, tenant=tenant))


def _turn(row: Row[Any]) -> tuple[float, str]:
    """Return what orders flows: closed ones come last."""
    return (math.inf if row.turn is None else row.turn, row.tenant)


def _head_of_a_tenant_without_interactive_work(tx: Transaction, card: ModelCard) -> Row[Any] | None:
    """Return the most urgent chunk of such a tenant, that of the flow whose turn is first; None if there is none."""
    interactive = next_flows(tx, card.name, interactive=True, limit=MAX_FLOWS)
    for tenant in next_flows(tx, card.name, interactive=False, limit=MAX_FLOWS):
        if tenant not in interactive and (found := _waiting(tx, card, 1, interactive=False, tenant=tenant)):
            return found[0]
    return None


def _of_flow(
    tx: Transaction, card: ModelCard, count: int, tenant: str, interactive: bool, head: Row[Any] | None
) -> Iterator[_Group]:
    """Yield the groups of one flow. head: its most urgent chunk, if that is known."""

    def waiting(limit: int, *, of_group: int | None = None, of_others: int | None = None) -> list[Row[Any]]:
        return _waiting(tx, card, limit, interactive=interactive, tenant=tenant, of_group=of_group, of_others=of_others)

    if interactive:
        # Groups are not completed from the backlog: no index leads to the interactive chunks of a group alone.
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
    tx: Transaction, card: ModelCard, limit: int, *, interactive: bool | None, **which: str | int | None
) -> list[Row[Any]]:
    """Lock and return waiting chunks that a worker can score, the most urgent first, without those locked by others.

    interactive: None for both classes; which: values for the conditions of :func:`_select_waiting`. A value that is
    None stands for no condition.
    """
    values = {name: value for name, value in which.items() if value is not None}
    statement = _select_waiting(interactive, frozenset(values))
    return list(tx.execute(statement, {"limit": limit} | card_parameters(card) | values))


@cache
def _select_waiting(interactive: bool | None, which: frozenset[str]) -> Select[Any]:
    conditions = {
        "tenant": chunks.c.tenant == bindparam("tenant"),
        "of_group": chunks.c.prefix_id == bindparam("of_group"),
        "of_others": chunks.c.prefix_id != bindparam("of_others"),
    }
    columns = chunks.c["id", "tenant", "prefix_id", "interactive", "token_count", "batch_limit"]
    # The length of the prefix, without reading its bytes.
    prefix_bytes = select(func.length(prefixes.c.tokens)).where(prefixes.c.id == chunks.c.prefix_id).scalar_subquery()
    return (
        select(
            *columns,
            prefix_bytes.label("prefix_bytes"),
            turn_of_flow().label("turn"),
            count_of_open_flows().label("open_flows"),
        )
        .where(CLAIMABLE, *(() if interactive is None else (is_of_class(interactive),)))
        .where(*(conditions[name] for name in sorted(which)))
        .order_by(chunks.c.due_at, chunks.c.id)
        .limit(bindparam("limit", type_=Integer))
        .with_for_update(skip_locked=True)
    )


def _groups(rows: Iterable[Row[Any]]) -> list[_Group]:
    """Group chunks by prefix, in the order of each group's first chunk."""
    groups: dict[int, list[Row[Any]]] = {}
    for row in rows:
        groups.setdefault(row.prefix_id, []).append(row)
    return [(rows, work_of_prefix(rows[0].prefix_bytes // TOKEN_BYTES)) for rows in groups.values()]


def _take(tx: Transaction, worker_id: str, model: str, choice: _Choice) -> Claim | None:
    """Make the chosen chunks one batch. If rows were not locked, the condition of the update decides who gets them."""
    batch_id = new_batch_id()
    tokens: Counter[str] = Counter()
    for chunk in choice.chunks:
        tokens[chunk.tenant] += chunk.cost
    values = {
        "chunk_ids": [chunk.id for chunk in choice.chunks],
        "in_batch": batch_id,
        "to_worker": worker_id,
        "lease_seconds": tx.settings.lease_seconds,
        "of_model": model,
        "of_class": choice.interactive,
        "tokens": {} if choice.maybe_closed else tokens,
    }
    for statement in _TAKE_BY_STEPS if tx.is_sqlite else ():
        tx.execute(statement, values)
    rows = {row.id: row for row in tx.execute(_LOAD_TAKEN if tx.is_sqlite else _TAKE_AND_LOAD, values)}
    if not rows:
        return None
    work = _work(rows, [chunk for chunk in choice.chunks if chunk.id in rows])
    update_flows(tx, model, tokens if choice.maybe_closed else {}, choice.empty, interactive=choice.interactive)
    work_left = choice.seen == FEW_CHUNKS or choice.seen > len(rows)
    durable = any(row.durable for row in rows.values())
    return Claim(batch_id, work, choice.interactive, work_left, durable, tokens)


def _starting(taken: CTE) -> Update:
    """Return a statement that starts the jobs of chunks that were taken.

    A claim holds chunks already, so it must not wait for the lock of a job. A locked job is skipped: either another
    claim is starting it, or it is ending. If a skipped job is still queued later, its first finished chunk starts it.
    """
    queued = (
        select(jobs.c.id)
        .where(jobs.c.id.in_(select(taken.c.job_id)), jobs.c.status == JobStatus.QUEUED.value)
        .with_for_update(key_share=True, skip_locked=True)
        .cte("queued")
    )
    started = {"status": JobStatus.RUNNING.value, "started_at": NOW}
    return update(jobs).where(jobs.c.id.in_(select(queued.c.id))).values(started)


def _loading(taken: CTE) -> Select[Any]:
    """Return a query for the inputs of chunks that were taken."""
    # A prefix may be long, so it is read with one chunk of its group only.
    bearers = select(func.min(taken.c.id)).group_by(taken.c.prefix_id)
    return (
        select(
            taken.c.id,
            chunk_inputs.c.rows,
            *jobs.c["label_token_ids", "options"],
            _ENDS_DURABLY.label("durable"),
            *prefixes.c["tokens", "tenant", "tokenizer_fingerprint"],
        )
        .join(chunk_inputs, chunk_inputs.c.chunk_id == taken.c.id)
        .join(jobs, jobs.c.id == taken.c.job_id)
        .outerjoin(prefixes, and_(prefixes.c.id == taken.c.prefix_id, taken.c.id.in_(bearers)))
    )


# Whether the end of a job must outlive a crash of the database. That of a call need not, because its client has been
# answered by then, unless the client may send the call again and expect the same answer, or is told of its end.
_ENDS_DURABLY = or_(
    jobs.c.origin != Origin.CALL.value,
    jobs.c.webhook.is_not(None),
    # With a limit, PostgreSQL reads an index for each call instead of the whole table.
    select(idempotency_keys.c.job_id)
    .where(idempotency_keys.c.job_id == jobs.c.id)
    .limit(1)
    .scalar_subquery()
    .is_not(None),
)
# Written so that no index of waiting chunks fits: if old statistics say that few chunks wait, PostgreSQL would read all
# of such an index instead of finding the chunks by their ids.
_STILL_WAITING = chunks.c.state.concat("") == ChunkState.WAITING.value
_TAKE = (
    update(chunks)
    .where(is_one_of(chunks.c.id, "chunk_ids"), _STILL_WAITING)
    .values(state=ChunkState.CLAIMED.value, batch_id=bindparam("in_batch"))
)
_COLUMNS = chunks.c["id", "job_id", "prefix_id"]
# PostgreSQL runs all of it as one statement.
_TAKEN = _TAKE.returning(*_COLUMNS).cte("taken")
_TAKE_AND_LOAD = _loading(_TAKEN).add_cte(
    _starting(_TAKEN).cte("started"), granting(_TAKEN).cte("granted"), charging(_TAKEN).cte("charged_flows")
)
# SQLite can't change several tables in one statement.
_NOW_TAKEN = (
    select(*_COLUMNS)
    .where(is_one_of(chunks.c.id, "chunk_ids"), chunks.c.batch_id == bindparam("in_batch"))
    .cte("taken")
)
_TAKE_BY_STEPS = (_TAKE, _starting(_NOW_TAKEN), granting(_NOW_TAKEN), charging(_NOW_TAKEN))
_LOAD_TAKEN = _loading(_NOW_TAKEN)


def _work(rows: Mapping[int, Row[Any]], taken: Iterable[_Chosen]) -> tuple[GroupWork, ...]:
    """Return the work of chunks by group; groups and chunks keep their order. rows: the inputs of each chunk, by id."""
    # With shared prefixes, chunks of one group may belong to several tenants and need not be neighbours.
    groups: dict[int, list[Row[Any]]] = {}
    for chunk in taken:
        groups.setdefault(chunk.prefix_id, []).append(rows[chunk.id])
    return tuple(map(_group_work, groups.values()))


def _group_work(rows: Sequence[Row[Any]]) -> GroupWork:
    bearer = next(row for row in rows if row.tokens is not None)
    return GroupWork(
        owner=f"{bearer.tenant}:{bearer.tokenizer_fingerprint}",
        prefix=unpack_ids(bearer.tokens),
        chunks=tuple(
            ChunkWork(
                id=row.id,
                rows=Rows.from_bytes(row.rows),
                label_token_ids=tuple(unpack_ids(row.label_token_ids).tolist()),
                head=unpack_options(row.options).head,
            )
            for row in rows
        ),
    )
