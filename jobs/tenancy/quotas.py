"""Quotas: how much unfinished work a tenant may have, in tokens as :mod:`scoring.work` counts.

A job is charged with the work of its rows, and once with the work of its prefix, however many chunks it has. Where the
unfinished work is counted, a prefix counts once for all jobs that share it, because such jobs are claimed together.

The row of a tenant with a quota has a counter. Accepting a job adds the job's tokens to it, in the job's transaction,
and is refused if the sum exceeds the quota. The counter is never decremented: when it says that the quota is full, the
unfinished work is counted, and the counter is set to the result. So it is never too low and does not drift, and quotas
slow down neither claims, nor finished work, nor tenants without a quota. A count reads all waiting work of the tenant,
so counts are spaced to take at most 2 % of the time.

The tenant's row is the last in the order of locks. Jobs of one tenant with a quota are accepted one after another.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from sqlalchemy import bindparam, func, select, union_all, update

from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.prefix_work import prefix_work
from jobs.store.records import Submission
from jobs.store.tables import CLAIMED, STAGED, WAITING, chunks, flows, jobs, tenants
from scoring.error_codes import ErrorCode, RequestError

MAX_COUNTING_SHARE = 0.02  # share of the time that may be spent on counting, where counting can be delayed
MAX_RECOUNT_DELAY_SECONDS = 30.0  # longest delay of a count
RETRY_SECONDS = 1.0
JITTER = 0.5

T = TypeVar("T")


class QuotaFullError(Exception):
    """The counter says that the quota is full. Raised in the transaction that accepts work, which it rolls back."""

    def __init__(self, tenant: str) -> None:
        super().__init__(tenant)
        self.tenant = tenant


def charge(tx: Transaction, tenant: str, quota: int, tokens: int, *, waits: bool = True) -> None:
    """Add work, in tokens, to the counter. To be called at the end of the transaction that accepts the work.

    A transaction that charges several tenants charges them in the order of their names. waits: whether to wait while
    another transaction holds the row of the tenant, such as one that counts. If not, the quota is taken to be full.
    Raises QuotaFullError.
    """
    values = {"of_tenant": tenant, "quota": quota, "tokens": tokens}
    if tx.scalar(_CHARGE if waits else _CHARGE_IF_FREE, values) is None:
        raise QuotaFullError(tenant)


def have_room(tx: Transaction, wanted: Sequence[Submission]) -> list[bool]:
    """Return for each submission whether the quota of its tenant has room for it and all those before it that fit."""
    counters = read_counters(tx, {one.tenant for one in wanted if one.price})
    found = []
    for one in wanted:
        fits = True
        if one.quota is not None and (price := one.price):
            waiting = counters.get(one.tenant, one.quota) + price
            fits = waiting <= one.quota
            counters[one.tenant] = waiting if fits else waiting - price
        found.append(fits)
    return found


def charge_all(tx: Transaction, accepted: Collection[Submission], *, waits: bool = True) -> None:
    """Charge tenants with submissions that are stored: see :func:`charge`."""
    prices: Counter[str] = Counter()
    quotas: dict[str, int] = {}
    for one in accepted:
        if one.quota is not None and (price := one.price):
            prices[one.tenant] += price
            quotas[one.tenant] = min(one.quota, quotas.get(one.tenant, one.quota))
    for tenant in sorted(prices):
        charge(tx, tenant, quotas[tenant], prices[tenant], waits=waits)


def check_size(quota: int | None, tokens: int) -> None:
    """Raise RequestError REQUEST_TOO_LARGE for a job that is larger than the whole quota."""
    if quota is not None and tokens > quota:
        message = f"this is {tokens} tokens of work, and this tenant's quota is {quota}"
        raise RequestError(ErrorCode.REQUEST_TOO_LARGE, message)


def read_counters(tx: Transaction, names: Collection[str]) -> dict[str, int]:
    """Return what the counters of tenants say. Read early, to save the work on jobs that would be refused."""
    return {row.name: row.waiting_tokens for row in tx.execute(_COUNTERS, {"names": sorted(names)})} if names else {}


def has_room(db: Database, tenant: str, quota: int, tokens: int) -> bool:
    """Return whether so much more work would be within a tenant's quota now. Charges nothing.

    The counter is an upper bound. So the unfinished work is only counted if the counter says that there is no room, and
    no more often than for work that is submitted.
    """

    def fits() -> bool:
        with db.read() as tx:
            return read_counters(tx, [tenant]).get(tenant, 0) + tokens <= quota

    return fits() or (recount(db, tenant) == 0 and fits())


def within_quota(db: Database, tenant: str, accept: Callable[[], T]) -> T:
    """Call ``accept``, and again after a count if the quota seems full. Raises RequestError QUOTA_EXCEEDED."""
    try:
        return accept()
    except QuotaFullError:
        seconds = recount(db, tenant)
        if seconds:
            raise _exceeded(seconds) from None
    try:
        return accept()
    except QuotaFullError:
        raise _exceeded(0.0) from None


def recount(db: Database, tenant: str) -> float:
    """Set a tenant's counter to its unfinished work. Returns 0, or the seconds until the next count is allowed.

    Raises RequestError INVALID_API_KEY if the tenant was deleted meanwhile.
    """
    with db.write(slow=True) as tx:
        # Transactions that have raised the counter lock the row until they end, so the count below sees their jobs.
        row = tx.execute(
            select(tenants.c.recount_at, NOW.label("now"))
            .where(tenants.c.name == tenant)
            .with_for_update(key_share=True)
        ).one_or_none()
        if row is None:
            raise RequestError(ErrorCode.INVALID_API_KEY, "the tenant of this API key was deleted")
        if row.recount_at > row.now:
            return float(row.recount_at - row.now)
        began = time.perf_counter()
        unfinished = tx.scalar(_UNFINISHED, {"of_tenant": tenant})
        pause = min(MAX_RECOUNT_DELAY_SECONDS, (time.perf_counter() - began) / MAX_COUNTING_SHARE)
        tx.execute(
            update(tenants)
            .where(tenants.c.name == tenant)
            .values(waiting_tokens=int(unfinished or 0), recount_at=row.now + pause)
        )
    return 0.0


def _exceeded(seconds: float) -> RequestError:
    return RequestError(
        ErrorCode.QUOTA_EXCEEDED,
        "as much as may wait of this tenant waits already; try again when some of it is done",
        retry_after=max(RETRY_SECONDS, seconds) * random.uniform(1.0, 1.0 + JITTER),
    )


_OF_TENANT = tenants.c.name == bindparam("of_tenant")
_CHARGE = (
    update(tenants)
    .where(_OF_TENANT, tenants.c.waiting_tokens + bindparam("tokens") <= bindparam("quota"))
    .values(waiting_tokens=tenants.c.waiting_tokens + bindparam("tokens"))
    .returning(tenants.c.name)
)
# PostgreSQL locks the row in the subquery; SQLite locks nothing by rows, and has one writer at a time.
_IS_FREE = (
    tenants.c.name
    == select(tenants.c.name).where(_OF_TENANT).with_for_update(key_share=True, skip_locked=True).scalar_subquery()
)
_CHARGE_IF_FREE = _CHARGE.where(_IS_FREE)
_COUNTERS = select(tenants.c.name, tenants.c.waiting_tokens).where(
    tenants.c.name.in_(bindparam("names", expanding=True))
)
# Waiting, claimed and staged chunks, each read through an index that exists for another purpose. In one statement, so
# that no chunk changes its state between the parts.
_COLUMNS = chunks.c["model", "prefix_id", "token_count"]
_CHUNKS = union_all(
    select(*_COLUMNS)
    .join(
        flows,
        (chunks.c.model == flows.c.model)
        & (chunks.c.tenant == flows.c.tenant)
        & (chunks.c.interactive == flows.c.interactive),
    )
    .where(WAITING, flows.c.tenant == bindparam("of_tenant")),
    select(*_COLUMNS).where(CLAIMED, chunks.c.tenant == bindparam("of_tenant")),
    select(*_COLUMNS)
    .join(jobs, jobs.c.id == chunks.c.job_id)
    .where(
        jobs.c.received_at.is_not(None),
        jobs.c.tenant == bindparam("of_tenant"),
        STAGED,
    ),
).subquery("unfinished")
_GROUPS = (
    select(_CHUNKS.c.prefix_id, func.sum(_CHUNKS.c.token_count).label("tokens"))
    .group_by(_CHUNKS.c.model, _CHUNKS.c.prefix_id)
    .subquery("groups")
)
_UNFINISHED = select(func.sum(_GROUPS.c.tokens + prefix_work(_GROUPS.c.prefix_id)))
