"""Fair shares: whose work is claimed next (start-time fair queueing; Goyal, Vin and Cheng, 1996).

A flow is the waiting work of one tenant for one model; its interactive work is a flow of its own. The virtual time of a
flow is the work that was claimed of it, in tokens as :mod:`scoring.work` counts them, divided by the tenant's weight.
Claims serve the open flows in the order of their virtual times. So a tenant with a long backlog delays the job of
another tenant by the claim that is under way, and no worker is idle while work waits.

Adding work to a flow opens it, in the same transaction. A claim that finds a flow empty closes it. A flow that is
opened starts no earlier than the open flows, so a tenant can't save up its share. "Open" is only a hint: a claim that
finds work in a closed flow opens it.

Flows are almost last in the order of locks. A transaction that adds work holds the row of the flow with FOR KEY SHARE.
Neither other transactions that add work nor the charge of a claim wait for that lock. Closing needs a stronger lock,
and skips flows that are locked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import ColumnElement, Float, Integer, bindparam, case, func, select, update

from jobs.store.database import Transaction
from jobs.store.tables import WAITING, chunks, flows, tenants
from jobs.store.upsert import get_or_create, insert_if_new


def open_flow(tx: Transaction, model: str, tenant: str, *, interactive: bool) -> None:
    """Open a flow, so that claims search it. Call it in the transaction that adds work, so that no claim closes it."""
    key = {"model": model, "tenant": tenant, "interactive": interactive}
    if not get_or_create(tx, _FIND, _CREATE, key).is_open:
        start = _start(tx, model, interactive)
        virtual_time = case((flows.c.virtual_time < start, start), else_=flows.c.virtual_time)
        tx.execute(update(flows).filter_by(**key).values(is_open=True, virtual_time=virtual_time))


def _start(tx: Transaction, model: str, interactive: bool) -> float:
    """Return the virtual time of a flow that is opened now: the least of all open flows, else the greatest of any."""
    of_class = (flows.c.model == model, _flow_of_class(interactive))
    earliest = tx.scalar(select(func.min(flows.c.virtual_time)).where(*of_class, flows.c.is_open))
    if earliest is not None:
        return float(earliest)
    return float(tx.scalar(select(func.max(flows.c.virtual_time)).where(*of_class)) or 0.0)


def next_flows(tx: Transaction, model: str, *, interactive: bool, limit: int) -> list[str]:
    """Return the tenants of open flows, the least virtual time first."""
    return list(tx.scalars(_NEXT[interactive], {"model": model, "limit": limit}))


def update_flows(
    tx: Transaction,
    model: str,
    tokens: Mapping[str, int],
    maybe_closed: Collection[str],
    empty: Iterable[str],
    *,
    interactive: bool,
) -> None:
    """Charge a claim to its flows, and open and close flows as the claim found them. Call it once, at the claim's end.

    Flows are named by their tenants. tokens: the work that was claimed of each flow; maybe_closed: flows with claimed
    work that may be closed; empty: flows in which no work was found.
    """
    # These updates can wait for another claim. They come first and in one order, so that two claims can't deadlock.
    for tenant in sorted(tokens):
        if tenant in maybe_closed:
            open_flow(tx, model, tenant, interactive=interactive)
        tx.execute(_CHARGE[interactive], {"of_model": model, "of_tenant": tenant, "tokens": tokens[tenant]})
    for tenant in empty:
        _close(tx, model, tenant, interactive)


def _close(tx: Transaction, model: str, tenant: str, interactive: bool) -> None:
    """Close a flow. It stays open if any worker's work waits in it, or if a transaction is adding work to it."""
    key = (flows.c.model == model, flows.c.tenant == tenant, _flow_of_class(interactive))
    # Locked before the query: no transaction that adds work is under way, and what was added before is visible.
    if tx.scalar(select(flows.c.tenant).where(*key).with_for_update(skip_locked=True)) is None:
        return
    of_flow = (chunks.c.model == model, chunks.c.tenant == tenant, is_of_class(interactive))
    if tx.scalar(select(chunks.c.id).where(WAITING, *of_flow).limit(1)) is None:
        tx.execute(update(flows).where(*key).values(is_open=False))


def is_of_class(interactive: bool) -> ColumnElement[bool]:
    """Return a condition on ``chunks`` without parameters: a partial index matches only a constant condition."""
    return chunks.c.interactive if interactive else ~chunks.c.interactive


def _flow_of_class(interactive: bool) -> ColumnElement[bool]:
    return flows.c.interactive if interactive else ~flows.c.interactive


_FIND = (
    select(flows.c.is_open)
    .where(*(column == bindparam(column.name) for column in flows.primary_key))
    .with_for_update(read=True, key_share=True)
)
_CREATE = insert_if_new(flows).values(is_open=False, virtual_time=0.0).returning(flows.c.is_open)
_NEXT = {
    interactive: select(flows.c.tenant)
    .where(flows.c.model == bindparam("model"), _flow_of_class(interactive), flows.c.is_open)
    .order_by(flows.c.virtual_time, flows.c.tenant)
    .limit(bindparam("limit", type_=Integer))
    for interactive in (False, True)
}
_OF_TENANT = select(tenants.c.weight).where(tenants.c.name == bindparam("of_tenant"))
_WEIGHT = func.coalesce(_OF_TENANT.scalar_subquery(), 1.0)
_CHARGE = {
    interactive: update(flows)
    .where(
        flows.c.model == bindparam("of_model"), flows.c.tenant == bindparam("of_tenant"), _flow_of_class(interactive)
    )
    .values(virtual_time=flows.c.virtual_time + bindparam("tokens", type_=Float(53)) / _WEIGHT)
    for interactive in (False, True)
}
