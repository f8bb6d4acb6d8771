"""Taking waiting chunks as one batch: they change hands, their jobs start, a lease is granted, flows are charged.

It is written once. PostgreSQL carries it out as one statement, either with chunks that were chosen before, or with all
that waits if that fits into one batch. Then there is nothing to choose, and a claim takes one round trip: a worker that
keeps up with its work, such as calls, finds few chunks. SQLite can't change several tables in one statement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Row,
    Select,
    Update,
    and_,
    any_,
    bindparam,
    func,
    literal_column,
    select,
    update,
)

from jobs.queue.claims.claim_choice import select_waiting
from jobs.queue.fair_shares import charging
from jobs.queue.lease import granting
from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.hot_statement import WITHOUT_WAITING_FOR_THE_DISK, HotStatement
from jobs.store.lists import is_one_of
from jobs.store.records import JobStatus
from jobs.store.tables import ChunkState, chunk_inputs, chunks, flows, jobs, prefixes


def take_chosen(tx: Transaction, values: Mapping[str, Any]) -> dict[int, Row[Any]]:
    """Take chunks, and return those that were still waiting, with what :func:`_loading` loads, by their ids.

    If rows were not locked, the condition of the update decides who gets them.
    """
    for statement in _STEPS if tx.is_sqlite else ():
        tx.execute(statement, values)
    return {row.id: row for row in tx.execute(_LOAD if tx.is_sqlite else _TAKE_AND_LOAD, values)}


def take_all(db: Database, values: Mapping[str, Any], few: int, *, interactive_only: bool) -> Sequence[Any] | None:
    """Take all waiting chunks of the class of the most urgent one, or none if they do not all fit into one batch.

    None is taken, either, if ``few`` chunks wait or more, if a flow with work is closed, or if a chunk limits its next
    batch. Returns the waiting chunks, the most urgent first, with what :func:`_loading` loads of those that were taken.
    Their ``job_id`` is set. Returns None if the database can't do so with one statement.
    """
    if db.is_sqlite:
        return None
    with db.without_transaction() as tx:
        return _take_all(few, interactive_only).rows(tx, values)


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


def _loading(taken: CTE, waiting: CTE | None = None) -> Select[Any]:
    """Return a query for the inputs of chunks that were taken. waiting: return a row for each of these chunks."""
    # A prefix may be long, so it is read with one chunk of its group only.
    first_of_each_prefix = select(func.min(taken.c.id)).group_by(taken.c.prefix_id)
    return (
        select(
            *((taken.c.id,) if waiting is None else waiting.c),
            taken.c.job_id,
            *chunk_inputs.c["rows", "continuations", "sources"],
            *jobs.c["label_token_ids", "options", "priority", "traceparent", "ends_durably"],
            *prefixes.c["tokens", "tokenizer_fingerprint"],
            prefixes.c.tenant.label("owner"),
        )
        .select_from(taken if waiting is None else waiting.outerjoin(taken, taken.c.id == waiting.c.id))
        .outerjoin(chunk_inputs, chunk_inputs.c.chunk_id == taken.c.id)
        .outerjoin(jobs, jobs.c.id == taken.c.job_id)
        .outerjoin(prefixes, and_(prefixes.c.id == taken.c.prefix_id, taken.c.id.in_(first_of_each_prefix)))
    )


_TAKEN = {"state": ChunkState.CLAIMED.value, "batch_id": bindparam("in_batch")}
_COLUMNS = chunks.c["id", "job_id", "prefix_id"]
# Written so that no index of waiting chunks fits: if old statistics say that few chunks wait, PostgreSQL would read all
# of such an index instead of finding the chunks by their ids.
_STILL_WAITING = chunks.c.state.concat("") == ChunkState.WAITING.value
_CHOSEN = is_one_of(chunks.c.id, "chunk_ids")
_TAKE = update(chunks).where(_CHOSEN, _STILL_WAITING).values(_TAKEN)

_taken = _TAKE.returning(*_COLUMNS).cte("taken")
_TAKE_AND_LOAD = _loading(_taken).add_cte(
    _starting(_taken).cte("started"), granting(_taken).cte("granted"), charging(_taken).cte("charged_flows")
)

_now_taken = select(*_COLUMNS).where(_CHOSEN, chunks.c.batch_id == bindparam("in_batch")).cte("taken")
_STEPS = (_TAKE, _starting(_now_taken), granting(_now_taken), charging(_now_taken))
_LOAD = _loading(_now_taken)


# Its limit is part of the text, because PostgreSQL plans the statement once for all values of its parameters.
@cache
def _take_all(few: int, interactive_only: bool) -> HotStatement:
    waiting = select_waiting(True if interactive_only else None).limit(literal_column(str(few))).cte("w")
    head = select(waiting.c.interactive).order_by(waiting.c.due_at, waiting.c.id).limit(literal_column("1")).cte("head")
    interactive = select(head.c.interactive).scalar_subquery()
    of_class = waiting.c.interactive == interactive
    tokens = func.sum(waiting.c.token_count) + func.max(waiting.c.prefix_work)
    group = (
        select(waiting.c.tenant, tokens.label("tokens")).where(of_class).group_by(waiting.c.tenant, waiting.c.prefix_id)
    )
    part = group.subquery("part")
    flow = (
        select(part.c.tenant.label("key"), func.sum(part.c.tokens).label("value")).group_by(part.c.tenant).cte("flow")
    )
    fit = (
        select(func.count() <= bindparam("most", type_=BigInteger))
        .where(of_class)
        .having(
            func.count(waiting.c.batch_limit) == 0,
            func.count(waiting.c.turn) == func.count(),
            select(func.sum(flow.c.value)).scalar_subquery() <= bindparam("budget", type_=BigInteger),
        )
    )
    of_flows = (flows.c.model == bindparam("of_model"), flows.c.interactive == interactive, flows.c.is_open)
    open_flows = select(func.count()).where(*of_flows).scalar_subquery()
    few_wait = select(func.count() < few).select_from(waiting)
    ids = select(waiting.c.id).where(of_class, fit.scalar_subquery(), few_wait.scalar_subquery())
    taken = (
        update(chunks)
        .where(chunks.c.id == any_(func.array(ids.scalar_subquery())))
        .values(_TAKEN)
        .returning(*_COLUMNS)
        .cte("taken")
    )
    return HotStatement(
        _loading(taken, waiting)
        .add_columns(open_flows.label("open_flows"))
        .order_by(waiting.c.due_at, waiting.c.id)
        .add_cte(
            _starting(taken).cte("started"),
            # A crash may undo a claim. The fence then rejects its scores, as the batch is unknown.
            granting(taken, WITHOUT_WAITING_FOR_THE_DISK == "off").cte("granted"),
            charging(taken, flow, interactive).cte("charged_flows"),
        )
    )
