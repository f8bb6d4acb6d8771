"""Fair shares: whose work is claimed next (start-time fair queueing; Goyal, Vin and Cheng, 1996).

A flow is the waiting work of one tenant for one model; its interactive work is a flow of its own. The virtual time of a
flow is the work that was claimed of it, in tokens as :mod:`scoring.work` counts them, divided by the tenant's weight.
Claims serve the open flows in the order of their virtual times. So a tenant with a long backlog delays the job of
another tenant by the claim that is under way, and no worker is idle while work waits.

Adding work to a flow opens it, in the same transaction. A claim that finds a flow empty closes it, unless a live worker
can score what waits in it. A flow that is opened starts no earlier than the open flows, so a tenant can't save up its
share. "Open" is only a hint: a claim that finds work in a closed flow opens it.

Flows are almost last in the order of locks. A transaction first creates all flows that are missing, then opens or
charges the others; each in the order of their keys. A transaction that adds work holds the row of the flow with FOR KEY
SHARE. Neither other transactions that add work nor the charge of a claim wait for that lock. Closing needs a stronger
lock, and skips flows that are locked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    Float,
    FromClause,
    Integer,
    ScalarSelect,
    Update,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal_column,
    select,
    update,
)

from checkpoints.card import ModelCard
from jobs.queue.read import CLAIMABLE, card_parameters
from jobs.queue.worker_registry import live_cards
from jobs.store.database import Transaction
from jobs.store.lists import is_one_of, numbers_by_name
from jobs.store.sqlite import BY_CODE_POINTS
from jobs.store.tables import WAITING, chunks, flows, tenants
from jobs.store.upsert import FindByKey, get_or_create_all, insert_if_new


class Flow(NamedTuple):
    """The primary key of a flow."""

    model: str
    tenant: str
    interactive: bool


def open_flows(tx: Transaction, wanted: Iterable[Flow]) -> None:
    """Open flows, so that claims search them. Call it in the transaction that adds work, so that no claim closes them.

    It creates all that are missing before it opens any. It opens them in the order in which claims charge them. So it
    can't deadlock with a claim, or with another transaction that adds work.
    """
    rows = get_or_create_all(tx, _FIND, _CREATE, {flow: flow._asdict() for flow in wanted})
    closed = sorted(flow for flow, row in rows.items() if not row.is_open)
    if closed:
        tx.execute(_OPEN, [{f"of_{name}": value for name, value in flow._asdict().items()} for flow in closed])


def turn_of_flow() -> ScalarSelect[float]:
    """Return, as a column beside those of ``chunks``, the virtual time of a chunk's flow; null for a closed flow."""
    return (
        select(flows.c.virtual_time)
        .where(
            flows.c.model == chunks.c.model,
            flows.c.tenant == chunks.c.tenant,
            flows.c.interactive == chunks.c.interactive,
            flows.c.is_open,
        )
        .scalar_subquery()
    )


def count_of_open_flows() -> ColumnElement[int]:
    """Return, as a column beside those of ``chunks``, how many flows of a chunk's class are open.

    The parameter ``for_model`` names their model. They are counted once, however many chunks there are.
    """
    of_class = {
        interactive: select(func.count())
        .where(flows.c.model == bindparam("for_model"), flows.c.interactive == interactive, flows.c.is_open)
        .scalar_subquery()
        for interactive in (False, True)
    }
    return case((chunks.c.interactive, of_class[True]), else_=of_class[False])


def next_flows(tx: Transaction, model: str, *, interactive: bool, limit: int) -> list[str]:
    """Return the tenants of open flows, the least virtual time first."""
    return list(tx.scalars(_NEXT, {"of_model": model, "of_class": interactive, "limit": limit}))


_TOKENS = numbers_by_name("tokens")
_OF_CLASS: ColumnElement[bool] = bindparam("of_class", type_=Boolean)


def charging(
    taken: CTE | None = None,
    charged: FromClause = _TOKENS,
    interactive: ColumnElement[bool] = _OF_CLASS,
) -> Update:
    """Return a statement that charges a claim to its flows, on condition that it has taken any chunks.

    charged: the work that is taken of each flow, a ``value`` for a tenant as its ``key``; interactive: whether the
    flows are. By default, these are the parameters ``tokens`` and ``of_class``. Another one is ``of_model``.
    """
    # The charge can wait for other claims and for flows that are opened. All lock the rows in one order.
    weight = select(tenants.c.weight).where(tenants.c.name == flows.c.tenant).scalar_subquery()
    of_class = (flows.c.model == bindparam("of_model"), flows.c.interactive == interactive)
    if_taken = () if taken is None else (exists().select_from(taken),)
    locked = (
        select(flows.c.tenant, (cast(charged.c.value, Float(53)) / func.coalesce(weight, 1.0)).label("time"))
        .join(charged, charged.c.key == flows.c.tenant)
        .where(*of_class, *if_taken)
        .order_by(flows.c.tenant.collate(BY_CODE_POINTS))
        .with_for_update(of=flows, key_share=True)
        .cte("charged")
    )
    return (
        update(flows)
        .where(*of_class, flows.c.tenant == locked.c.tenant)
        .values(virtual_time=flows.c.virtual_time + locked.c.time)
    )


def update_flows(
    tx: Transaction, card: ModelCard, tokens: Mapping[str, int], empty: Collection[str], *, interactive: bool
) -> None:
    """Open flows and charge a claim to them, and close flows that the claim found empty. Call it at the claim's end.

    Flows are named by their tenants. card: what the worker that claims serves. tokens: the work that was claimed of
    each flow, if any of these was found closed; otherwise nothing, because :func:`charging` has charged them.
    """
    if tokens:
        open_flows(tx, [Flow(card.name, tenant, interactive) for tenant in tokens])
        tx.execute(_CHARGE, {"of_model": card.name, "of_class": interactive, "tokens": tokens})
    if empty:
        _close(tx, card, empty, interactive)


def _close(tx: Transaction, card: ModelCard, names: Collection[str], interactive: bool) -> None:
    """Close flows. A flow stays open if a live worker's work waits in it, or if a transaction is adding work to it.

    A flow whose work nobody can score would keep its virtual time, and with it all flows that are opened.
    """
    # Locked before the query: no transaction that adds work is under way, and what was added before is visible.
    given: dict[str, Any] = {"of_model": card.name, "of_class": interactive, "names": names}
    left = set(tx.scalars(_LOCK_EMPTY, card_parameters(card) | given))
    if left:
        left -= set(tx.scalars(_CLOSE, given | {"names": left}))
    if left:
        for one in (card, *live_cards(tx, card.name)):
            left -= set(tx.scalars(_WITH_WORK, card_parameters(one) | given | {"names": left}))
        tx.execute(_CLOSE_ALL, given | {"names": left})


def is_of_class(interactive: bool) -> ColumnElement[bool]:
    """Return a condition on ``chunks`` without parameters: a partial index matches only a constant condition."""
    return chunks.c.interactive if interactive else ~chunks.c.interactive


_PRIMARY_KEY = tuple(flows.primary_key)
_FIND = FindByKey(select(*_PRIMARY_KEY, flows.c.is_open).with_for_update(read=True, key_share=True), _PRIMARY_KEY)
_CREATE = insert_if_new(flows).values(is_open=False, virtual_time=0.0).returning(*_PRIMARY_KEY, flows.c.is_open)
_OF_FLOW = tuple(column == bindparam(f"of_{column.name}") for column in _PRIMARY_KEY)
START = """coalesce((
    SELECT coalesce(min(others.virtual_time) FILTER (WHERE others.is_open), max(others.virtual_time))
    FROM lanes AS others WHERE others.model = lanes.model AND others.interactive = lanes.interactive
), 0.0)"""
"""The virtual time of a flow of the table ``lanes`` that is opened now, in SQL, if its own is not greater: at least the
least of all open flows, else the greatest of any."""
_START: ColumnElement[float] = literal_column(START, Float(53))
_OPEN = (
    update(flows)
    .where(*_OF_FLOW)
    .values(is_open=True, virtual_time=case((flows.c.virtual_time < _START, _START), else_=flows.c.virtual_time))
)
_OF_CLAIM = (flows.c.model == bindparam("of_model"), flows.c.interactive == _OF_CLASS)
_NEXT = (
    select(flows.c.tenant)
    .where(*_OF_CLAIM, flows.c.is_open)
    .order_by(flows.c.virtual_time, flows.c.tenant)
    .limit(bindparam("limit", type_=Integer))
)
_CHARGE = charging()
_NAMED = (*_OF_CLAIM, is_one_of(flows.c.tenant, "names"))
_IN_FLOW = (chunks.c.tenant == flows.c.tenant, chunks.c.interactive == flows.c.interactive)
# Of the worker of card_parameters. A limit keeps PostgreSQL from turning this into a join with all chunks that wait.
_WORK = select(chunks.c.id).where(CLAIMABLE, *_IN_FLOW).limit(1).scalar_subquery()
_ANY_WORK = select(chunks.c.id).where(WAITING, chunks.c.model == flows.c.model, *_IN_FLOW).limit(1).scalar_subquery()
# A claim also takes a flow for empty whose work another claim holds, or which is left to another worker for a moment.
_LOCK_EMPTY = select(flows.c.tenant).where(*_NAMED, _WORK.is_(None)).with_for_update(of=flows, skip_locked=True)
_CLOSE_ALL = update(flows).where(*_NAMED).values(is_open=False)
_CLOSE = _CLOSE_ALL.where(_ANY_WORK.is_(None)).returning(flows.c.tenant)
_WITH_WORK = select(flows.c.tenant).where(*_NAMED, _WORK.is_not(None))
