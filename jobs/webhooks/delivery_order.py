"""Which deliveries are sent next: tenants take turns, and within a tenant its hosts.

A look costs by the tenants with something pending, not by their hosts, which are free to invent, nor by what waits.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any

from sqlalchemy import Connection, Row, func, literal, select

from jobs.store.database import Database
from jobs.webhooks.tables import CLAIMED_DELIVERY, PENDING, webhook_deliveries

LOOKED_AT = 200
"""Of a tenant's deliveries that are due, those the longest due; and of its hosts beside theirs."""


def choose_deliveries(connection: Connection, db: Database, count: int, per_host: int) -> list[Row[Any]]:
    """Deliveries that are due, ``count`` at most, locked; those that others have locked are passed over.

    The turn is always the tenant's with the fewest under way, and its host's with the fewest: whoever has many, or many
    hosts, or slow ones, is before nobody. per_host: so many may be under way to one.
    """
    of_tenant, of_host = _under_way(connection, db)
    waiting = [(of_tenant[tenant], place, tenant) for place, tenant in enumerate(due_tenants(connection, db))]
    heapq.heapify(waiting)
    due: dict[str, Counter[str]] = {}
    wanted: Counter[tuple[str, str]] = Counter()
    while waiting and wanted.total() < count:
        under_way, place, tenant = heapq.heappop(waiting)
        if tenant not in due:
            due[tenant] = _due_hosts(connection, db, tenant, per_host)
        hosts = [host for host, left in due[tenant].items() if left and of_host[host] < per_host]
        if hosts:
            host = min(hosts, key=of_host.__getitem__)
            due[tenant][host] -= 1
            of_host[host] += 1
            wanted[tenant, host] += 1
            heapq.heappush(waiting, (under_way + 1, place, tenant))
    return [row for (tenant, host), limit in wanted.items() for row in _due(connection, db, tenant, host, limit)]


def due_tenants(connection: Connection, db: Database) -> list[str]:
    """The tenants with a delivery that is due, the longest due first.

    From tenant to tenant through the index, so that it takes a step for each of them and not for each delivery.
    """
    d = webhook_deliveries.c
    first = select(func.min(d.tenant).label("tenant")).where(PENDING).cte("tenants", recursive=True)
    further = select(func.min(d.tenant)).where(PENDING, d.tenant > first.c.tenant).correlate(first).scalar_subquery()
    tenants = first.union_all(select(further).where(first.c.tenant.is_not(None)))
    earliest = select(func.min(d.due_at)).where(PENDING, d.tenant == tenants.c.tenant).correlate(tenants)
    due = (
        select(tenants.c.tenant, earliest.scalar_subquery().label("due_at"))
        .where(tenants.c.tenant.is_not(None))
        .subquery("due")
    )
    return list(connection.scalars(select(due.c.tenant).where(due.c.due_at <= db.now).order_by(due.c.due_at)))


def _under_way(connection: Connection, db: Database) -> tuple[Counter[str], Counter[str]]:
    """How many deliveries of each tenant, and to each host, somebody holds."""
    d = webhook_deliveries.c
    counted = connection.execute(
        select(d.tenant, d.host, func.count().label("held"))
        .where(CLAIMED_DELIVERY, PENDING, d.due_at > db.now)
        .group_by(d.tenant, d.host)
    )
    of_tenant: Counter[str] = Counter()
    of_host: Counter[str] = Counter()
    for row in counted:
        of_tenant[row.tenant] += row.held
        of_host[row.host] += row.held
    return of_tenant, of_host


def _due_hosts(connection: Connection, db: Database, tenant: str, per_host: int) -> Counter[str]:
    """A tenant's hosts, the longest due first, and how many deliveries to each are due, as far as is looked.

    With more due than are looked at, a host that has them all would hide the others. So the first of its hosts are
    looked at as well, in the order of their names, from host to host through the index.
    """
    d = webhook_deliveries.c
    now = select(db.now).scalar_subquery()
    longest = connection.scalars(
        select(d.host).where(PENDING, d.tenant == tenant, d.due_at <= now).order_by(d.due_at, d.id).limit(LOOKED_AT)
    ).all()
    found = Counter(longest)
    if len(longest) < LOOKED_AT:
        return found
    of_tenant = (PENDING, d.tenant == tenant)
    first = select(func.min(d.host).label("host"), literal(1).label("step")).where(*of_tenant)
    hosts = first.cte("hosts", recursive=True)
    further = select(func.min(d.host)).where(*of_tenant, d.host > hosts.c.host).correlate(hosts).scalar_subquery()
    hosts = hosts.union_all(
        select(further, hosts.c.step + 1).where(hosts.c.host.is_not(None), hosts.c.step < LOOKED_AT)
    )
    earliest = select(func.min(d.due_at)).where(*of_tenant, d.host == hosts.c.host).correlate(hosts)
    due = select(hosts.c.host, earliest.scalar_subquery().label("due_at")).subquery("due")
    for host in connection.scalars(select(due.c.host).where(due.c.due_at <= now)):
        # How many of them is not known, but that more than this can't be sent.
        found[host] = max(found[host], per_host)
    return found


def _due(connection: Connection, db: Database, tenant: str, host: str, limit: int) -> list[Row[Any]]:
    d = webhook_deliveries.c
    # In a subquery, which is evaluated once: PostgreSQL looks nothing up in an index by what is volatile.
    now = select(db.now).scalar_subquery()
    return list(
        connection.execute(
            select(*d["id", "tenant", "url", "called_for", "claim_id", "attempts", "due_at"])
            .where(PENDING, d.tenant == tenant, d.host == host, d.due_at <= now)
            .order_by(d.due_at, d.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
    )
