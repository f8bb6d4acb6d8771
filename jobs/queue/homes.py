"""Where prefixes are at home: the worker that claimed work behind a prefix last has its keys and values in memory.

A job whose prefix is at home with a live worker is left to it for as long as that worker would need to compute the
prefix, and to anybody afterwards. So whatever the home is doing, a job waits for no longer than another worker would
compute for nothing (the rule of ski rental: Karlin et al., Competitive snoopy caching, 1988). Calls are left to nobody.
Nothing changes in the order between tenants.

Without PostgreSQL, a deployment has one worker, and there are no homes.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import ColumnElement, bindparam, or_, select, tuple_, update

from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.lists import is_one_of
from jobs.store.tables import Seconds, chunks, prefixes, workers

LONGEST_SECONDS = 5.0
"""For how long work is left to a worker at most."""

REMEMBERED_SECONDS = 600.0
"""How long a worker is taken for the home of a prefix. By then, others may have taken the prefix's place in memory."""

REFRESH_SECONDS = 60.0
"""How often a worker writes that it is the home of a prefix whose work it claims again and again."""

MAX_SETTLED = 10_000
"""Of how many prefixes a worker remembers when it has written that."""

FREE: ColumnElement[bool] = or_(
    chunks.c.home.is_(None), chunks.c.home == bindparam("for_worker"), chunks.c.home_until <= NOW
)
"""SQL condition: a chunk is left to no other worker than that of :func:`jobs.queue.read.card_parameters`."""

PrefixKey = tuple[str, ...]
"""The tenant, work key and hash of a prefix."""


class Home(NamedTuple):
    """The home of a prefix."""

    worker: str
    seconds: float  # for which work is left to it


class Settler:
    """Writes which prefixes are at home with a worker. For use by one thread."""

    def __init__(self, database: Database, worker_id: str) -> None:
        self._database = database
        self._worker_id = worker_id
        self._written: dict[int, float] = {}  # monotonic seconds, by the ids of prefixes

    def settle(self, prefix_ids: Collection[int]) -> None:
        """Be the home of prefixes whose work was claimed. Raises StorageUnavailable."""
        now = time.monotonic()
        new = [one for one in prefix_ids if self._written.get(one, -REFRESH_SECONDS) <= now - REFRESH_SECONDS]
        if not new or self._database.is_sqlite:
            return
        if len(self._written) > MAX_SETTLED:
            self._written.clear()
        self._written.update(dict.fromkeys(new, now))
        with self._database.write(durable=False) as tx:
            tx.execute(_SETTLE, {"prefix_ids": new, "to_worker": self._worker_id})


def homes_of(tx: Transaction, keys: Collection[PrefixKey]) -> dict[PrefixKey, Home]:
    """Return the homes of prefixes by their keys, as far as they are live workers that have measured their pace."""
    if not keys or tx.is_sqlite:
        return {}
    rows = tx.execute(_FIND, {"keys": sorted(keys), "fresh": tx.settings.worker_fresh_seconds})
    return {tuple(row[:3]): Home(row.home, min(row.seconds, LONGEST_SECONDS)) for row in rows}


# Whoever has locked a prefix is not waited for: it may be at home elsewhere, then.
_FREE_PREFIXES = (
    select(prefixes.c.id)
    .where(is_one_of(prefixes.c.id, "prefix_ids"))
    .with_for_update(key_share=True, skip_locked=True)
    .scalar_subquery()
)
_SETTLE = update(prefixes).where(prefixes.c.id.in_(_FREE_PREFIXES)).values(home=bindparam("to_worker"), home_at=NOW)
_KEY = prefixes.c["tenant", "tokenizer_fingerprint", "sha256"]
_FIND = (
    select(*_KEY, prefixes.c.home, (prefixes.c.work / workers.c.tokens_per_second).label("seconds"))
    .join(workers, workers.c.id == prefixes.c.home)
    .where(
        tuple_(*_KEY).in_(bindparam("keys", expanding=True)),
        prefixes.c.home_at > NOW - REMEMBERED_SECONDS,
        workers.c.tokens_per_second > 0,
        workers.c.last_seen > NOW - bindparam("fresh", type_=Seconds),
    )
)
