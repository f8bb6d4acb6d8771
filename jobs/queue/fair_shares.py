"""Fair shares: whose work is next.

The waiting work of a tenant for a model is a lane, its interactive work another. A lane's virtual time is what has been
claimed of it, in tokens as :mod:`scoring.work` counts, and claims go to the open lanes in the order of their virtual
times (start-time fair queueing; Goyal, Vin and Cheng, 1996). So a tenant with a long backlog delays another's job by
the claim that is under way, and nobody's share lies idle while anybody's work waits.

A tenant's weight is its share beside the others: what is charged is divided by it.

A lane is opened by whoever adds work to it, in the same transaction, and closed by a claim that finds it empty. Being
open is a hint: a claim that finds work in a closed lane opens it. Nobody saves up by having no work: a lane that is
opened starts no earlier than those that are open.

Lanes come last in the order of locks. Who adds work holds the row's key (FOR KEY SHARE), which neither another's adding
nor the charge of a claim waits for; only closing does, and passes over what is held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import ColumnElement, Connection, Float, Integer, bindparam, case, func, select, update

from jobs.store.database import Database
from jobs.store.tables import WAITING, chunks, lanes, tenants


def open_lane(connection: Connection, db: Database, model: str, tenant: str, *, interactive: bool) -> None:
    """Have claims look at a lane. To be called in the transaction that adds work to it: closing passes over it then."""
    key = {"model": model, "tenant": tenant, "interactive": interactive}
    made = db.insert(lanes).values(**key, is_open=False, virtual_time=0.0).on_conflict_do_nothing()
    while (found := connection.scalar(_HOLD, key)) is None:  # made now, or by another just now, found the next time
        connection.execute(made)
    if not found:
        start = _present(connection, model, interactive)
        later = case((lanes.c.virtual_time < start, start), else_=lanes.c.virtual_time)
        connection.execute(update(lanes).filter_by(**key).values(is_open=True, virtual_time=later))


def _present(connection: Connection, model: str, interactive: bool) -> float:
    """The least virtual time of an open lane or, while none is open, the greatest of any."""
    of_class = (lanes.c.model == model, _of_class(interactive))
    earliest = connection.scalar(select(func.min(lanes.c.virtual_time)).where(*of_class, lanes.c.is_open))
    if earliest is not None:
        return float(earliest)
    return float(connection.scalar(select(func.max(lanes.c.virtual_time)).where(*of_class)) or 0.0)


def next_lanes(connection: Connection, model: str, *, interactive: bool, limit: int) -> list[str]:
    """The tenants of open lanes, in the order in which it is their turn."""
    return list(connection.scalars(_NEXT[interactive], {"model": model, "limit": limit}))


def settle(
    connection: Connection,
    db: Database,
    model: str,
    tokens: Mapping[str, int],
    unknown: Collection[str],
    empty: Iterable[str],
    *,
    interactive: bool,
) -> None:
    """What a claim changes about lanes, named by tenant. To be called at its end, and once.

    tokens: that were claimed, to be charged; unknown: those of them that may be closed; empty: lanes without work.
    """
    # Those that it may have to wait for first, in one order. Of two claims, neither then waits for the other's.
    for tenant in sorted(tokens):
        if tenant in unknown:
            open_lane(connection, db, model, tenant, interactive=interactive)
        connection.execute(_CHARGE[interactive], {"of_model": model, "of_tenant": tenant, "tokens": tokens[tenant]})
    for tenant in empty:
        _close(connection, model, tenant, interactive)


def _close(connection: Connection, model: str, tenant: str, interactive: bool) -> None:
    """Close a lane if no work waits in it, whoever could do it, and nobody is adding any."""
    key = (lanes.c.model == model, lanes.c.tenant == tenant, _of_class(interactive))
    # Locked before the look: what was added by a transaction that has ended is seen, and no other is under way.
    if connection.scalar(select(lanes.c.tenant).where(*key).with_for_update(skip_locked=True)) is None:
        return
    of_lane = (chunks.c.model == model, chunks.c.tenant == tenant, in_class(interactive))
    if connection.scalar(select(chunks.c.id).where(WAITING, *of_lane).limit(1)) is None:
        connection.execute(update(lanes).where(*key).values(is_open=False))


def in_class(interactive: bool) -> ColumnElement[bool]:
    """Of chunks. Written as indexes have it: a condition on a parameter would find none that is partial."""
    return chunks.c.interactive if interactive else ~chunks.c.interactive


def _of_class(interactive: bool) -> ColumnElement[bool]:
    return lanes.c.interactive if interactive else ~lanes.c.interactive


_HOLD = (
    select(lanes.c.is_open)
    .where(*(column == bindparam(column.name) for column in lanes.primary_key))
    .with_for_update(read=True, key_share=True)
)
_NEXT = {
    interactive: select(lanes.c.tenant)
    .where(lanes.c.model == bindparam("model"), _of_class(interactive), lanes.c.is_open)
    .order_by(lanes.c.virtual_time, lanes.c.tenant)
    .limit(bindparam("limit", type_=Integer))
    for interactive in (False, True)
}
_OF_TENANT = select(tenants.c.weight).where(tenants.c.name == bindparam("of_tenant"))
_WEIGHT = func.coalesce(_OF_TENANT.scalar_subquery(), 1.0)
_CHARGE = {
    interactive: update(lanes)
    .where(lanes.c.model == bindparam("of_model"), lanes.c.tenant == bindparam("of_tenant"), _of_class(interactive))
    .values(virtual_time=lanes.c.virtual_time + bindparam("tokens", type_=Float(53)) / _WEIGHT)
    for interactive in (False, True)
}
