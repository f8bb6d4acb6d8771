"""Which deliveries are sent next: tenants take turns, and so do the hosts of a tenant.

The cost of choosing grows with the number of tenants that have pending deliveries. It does not grow with the number of
pending deliveries, nor with the number of hosts. This matters because a tenant can invent as many hosts as it likes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row, func, literal, select

from jobs.store.clock import NOW
from jobs.store.database import Transaction
from jobs.webhooks.tables import CLAIMED_DELIVERY, PENDING, webhook_deliveries

SCAN_LIMIT = 200
"""How many of a tenant's due deliveries are looked at, the longest due first; and how many hosts after that."""


def choose_deliveries(tx: Transaction, places: int, held: Mapping[str, int], per_host: int) -> list[Row[Any]]:
    """Return due deliveries for the free places of a process, locked. Rows that others have locked are left out.

    Each place goes to the tenant with the fewest claimed deliveries, and among its hosts to the one with the fewest. An
    eighth of the places, and one at least, is for tenants that have none. So a tenant with many deliveries, many hosts
    or slow hosts does not delay other tenants. held: how many places each tenant has already. per_host: how many
    deliveries to one host may be claimed at once.
    """
    of_tenant, of_host = _under_way(tx)
    waiting = [(of_tenant[tenant], place, tenant) for place, tenant in enumerate(due_tenants(tx))]
    heapq.heapify(waiting)
    due: dict[str, Counter[str]] = {}
    wanted: Counter[tuple[str, str]] = Counter()
    sent_by = Counter(held)
    for_others = max(1, places // 8)
    while waiting and sent_by.total() < places:
        under_way, place, tenant = heapq.heappop(waiting)
        if sent_by[tenant] and sent_by.total() >= places - for_others:
            continue
        if tenant not in due:
            due[tenant] = _due_hosts(tx, tenant, per_host)
        hosts = [host for host, left in due[tenant].items() if left and of_host[host] < per_host]
        if hosts:
            host = min(hosts, key=of_host.__getitem__)
            due[tenant][host] -= 1
            of_host[host] += 1
            wanted[tenant, host] += 1
            sent_by[tenant] += 1
            heapq.heappush(waiting, (under_way + 1, place, tenant))
    return [row for (tenant, host), limit in wanted.items() for row in _due(tx, tenant, host, limit)]


def due_tenants(tx: Transaction) -> list[str]:
    """Return the tenants with a due delivery, the longest due first.

    The recursive query goes from tenant to tenant through the index: one step per tenant, not per delivery.
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
    return list(tx.scalars(select(due.c.tenant).where(due.c.due_at <= NOW).order_by(due.c.due_at)))


def _under_way(tx: Transaction) -> tuple[Counter[str], Counter[str]]:
    """Return how many deliveries of each tenant, and to each host, are claimed now."""
    d = webhook_deliveries.c
    counted = tx.execute(
        select(d.tenant, d.host, func.count().label("held"))
        .where(CLAIMED_DELIVERY, PENDING, d.due_at > NOW)
        .group_by(d.tenant, d.host)
    )
    of_tenant: Counter[str] = Counter()
    of_host: Counter[str] = Counter()
    for row in counted:
        of_tenant[row.tenant] += row.held
        of_host[row.host] += row.held
    return of_tenant, of_host


def _due_hosts(tx: Transaction, tenant: str, per_host: int) -> Counter[str]:
    """Return hosts of a tenant, the longest due first, and for each the number of its deliveries that were looked at.

    At most :data:`SCAN_LIMIT` due deliveries are looked at. If there are as many, all of them may be for one host. So
    then the query also goes from host to host through the index, and finds the tenant's first hosts in order of name.
    """
    d = webhook_deliveries.c
    longest = tx.scalars(
        select(d.host).where(PENDING, d.tenant == tenant, d.due_at <= NOW).order_by(d.due_at, d.id).limit(SCAN_LIMIT)
    ).all()
    found = Counter(longest)
    if len(longest) < SCAN_LIMIT:
        return found
    of_tenant = (PENDING, d.tenant == tenant)
    first = select(func.min(d.host).label("host"), literal(1).label("step")).where(*of_tenant)
    hosts = first.cte("hosts", recursive=True)
    further = select(func.min(d.host)).where(*of_tenant, d.host > hosts.c.host).correlate(hosts).scalar_subquery()
    hosts = hosts.union_all(
        select(further, hosts.c.step + 1).where(hosts.c.host.is_not(None), hosts.c.step < SCAN_LIMIT)
    )
    earliest = select(func.min(d.due_at)).where(*of_tenant, d.host == hosts.c.host).correlate(hosts)
    due = select(hosts.c.host, earliest.scalar_subquery().label("due_at")).subquery("due")
    for host in tx.scalars(select(due.c.host).where(due.c.due_at <= NOW)):
        # The number of due deliveries is not known, but no more than this can be claimed.
        found[host] = max(found[host], per_host)
    return found


def _due(tx: Transaction, tenant: str, host: str, limit: int) -> list[Row[Any]]:
    d = webhook_deliveries.c
    return list(
        tx.execute(
            select(*d["id", "tenant", "url", "called_for", "claim_id", "attempts", "due_at"])
            .where(PENDING, d.tenant == tenant, d.host == host, d.due_at <= NOW)
            .order_by(d.due_at, d.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
    )
