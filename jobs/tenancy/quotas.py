"""Quotas: how much unfinished work a tenant may have, in tokens as :mod:`scoring.work` counts, queries left out.

A tenant with a quota has a counter in its row. An accept adds what it brings, in its own transaction, and is refused
where that would be too much. Nothing is ever taken off it: when it says that the quota is full, what is unfinished is
counted anew, and it is set to that. So it is never less than the truth and can't drift, neither claims nor finished
work pay for it, and a tenant without a quota pays nothing at all. Counting reads what waits of the tenant; it is
spaced so that it takes a fiftieth of the time.

The tenant's row comes last in the order of locks. The accepts of one tenant with a quota commit one after another.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, bindparam, func, select, union_all, update

from jobs.store.database import Database
from jobs.store.tables import CLAIMED, WAITING, ChunkState, chunks, jobs, lanes, tenants
from scoring.error_codes import ErrorCode, RequestError

SHARE = 0.02
"""Of the time, what counting may take."""
MOST_SECONDS = 30.0
"""For so long at most it is put off."""
RETRY_SECONDS = 1.0
JITTER = 0.5

T = TypeVar("T")


class QuotaFullError(Exception):
    """The counter says that the quota is full. Raised within an accept's transaction, and undoes it."""


def charge(connection: Connection, tenant: str, quota: int, tokens: int) -> None:
    """Count work that is being accepted. To be called at the end of its transaction.

    Raises QuotaFullError; RequestError REQUEST_TOO_LARGE for what no waiting would help.
    """
    check_size(quota, tokens)
    values = {"of_tenant": tenant, "quota": quota, "tokens": tokens}
    if connection.scalar(_CHARGE, values) is None:
        raise QuotaFullError


def check_size(quota: int, tokens: int) -> None:
    """Raise RequestError REQUEST_TOO_LARGE for a job that is larger than the whole quota."""
    if tokens > quota:
        message = f"this is {tokens} tokens of work, and this tenant's quota is {quota}"
        raise RequestError(ErrorCode.REQUEST_TOO_LARGE, message)


def check_room(connection: Connection, tenant: str, quota: int) -> None:
    """Raise QuotaFullError where there is no room for anything, before much is done for nothing."""
    if connection.scalar(_ROOM, {"of_tenant": tenant, "quota": quota}) is None:
        raise QuotaFullError


def within_quota(db: Database, tenant: str, accept: Callable[[], T]) -> T:
    """Accept, and once more with a new count where the quota seems full. Raises RequestError QUOTA_EXCEEDED."""
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
    """Set a tenant's counter to what is unfinished of it. Returns 0, or for how many seconds it is too early for it."""
    with db.write() as connection:
        # Accepts that have counted hold the row until they have ended. So what is read next has what they brought.
        row = connection.execute(
            select(tenants.c.recount_at, db.now.label("now"))
            .where(tenants.c.name == tenant)
            .with_for_update(key_share=True)
        ).one()
        if row.recount_at > row.now:
            return float(row.recount_at - row.now)
        began = time.perf_counter()
        unfinished = connection.scalar(_UNFINISHED, {"of_tenant": tenant})
        pause = min(MOST_SECONDS, (time.perf_counter() - began) / SHARE)
        connection.execute(
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
_ROOM = select(tenants.c.name).where(_OF_TENANT, tenants.c.waiting_tokens < bindparam("quota"))
# Each by an index that is there for claims, batches or uploads. One statement: nothing changes places meanwhile.
_UNFINISHED = select(
    func.sum(
        union_all(
            select(chunks.c.token_count)
            .join(
                lanes,
                (chunks.c.model == lanes.c.model)
                & (chunks.c.tenant == lanes.c.tenant)
                & (chunks.c.interactive == lanes.c.interactive),
            )
            .where(WAITING, lanes.c.tenant == bindparam("of_tenant")),
            select(chunks.c.token_count).where(CLAIMED, chunks.c.tenant == bindparam("of_tenant")),
            select(chunks.c.token_count)
            .join(jobs, jobs.c.id == chunks.c.job_id)
            .where(
                jobs.c.received_at.is_not(None),
                jobs.c.tenant == bindparam("of_tenant"),
                chunks.c.state == ChunkState.STAGED.value,
            ),
        )
        .subquery("unfinished")
        .c.token_count
    )
)
