"""Tenants: whose work it is, what share of the workers it has, and how much of it may come."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from sqlalchemy import Connection, RowMapping, bindparam, select, update

from jobs.store.database import Database
from jobs.store.tables import tenants

DEFAULT_TENANT = "default"
"""Whose everything is that comes without a stored key: with the bootstrap key, or with none where none is asked for."""

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 1_000.0
MOST_LIMIT = {"max_waiting_tokens": 2**53, "requests_per_second": 10**6, "requests_per_minute": 10**6}
UNCOUNTED = 2**62
"""Tokens that wait of a tenant of which nothing is known: more than any quota, so that they are counted first."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant and its limits; None: no limit.

    weight: its share of the workers among those with waiting work; max_waiting_tokens: of unfinished chunks, as
    :mod:`scoring.work` counts; requests_per_second, requests_per_minute: over all of its keys.
    """

    name: str
    weight: float = 1.0
    max_waiting_tokens: int | None = None
    requests_per_second: int | None = None
    requests_per_minute: int | None = None


TENANT_COLUMNS = tenants.c[tuple(field.name for field in fields(Tenant))]


def tenant_of(row: RowMapping) -> Tenant:
    """A row that has :data:`TENANT_COLUMNS` as a tenant."""
    return Tenant(**{column.name: row[column] for column in TENANT_COLUMNS})


def find_tenant(db: Database, name: str) -> Tenant | None:
    """One tenant. Raises StorageUnavailable."""
    with db.read() as connection:
        row = connection.execute(_FIND, {"name": name}).mappings().one_or_none()
    return None if row is None else tenant_of(row)


def list_tenants(db: Database) -> list[Tenant]:
    """All tenants, by name."""
    with db.read() as connection:
        return [tenant_of(row) for row in connection.execute(_ALL).mappings()]


def make_tenant(connection: Connection, db: Database, name: str) -> bool:
    """Make a tenant without limits unless there is one of this name. Returns whether it is new.

    Raises ValueError for what is no name.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a tenant: 1 to 64 of a-z, 0-9, '.', '_' and '-', no sign first")
    made = db.insert(tenants).values(name=name, created_at=db.now).on_conflict_do_nothing().returning(tenants.c.name)
    return connection.scalar(made) is not None


def set_tenant(db: Database, name: str, **changes: float | None) -> Tenant:
    """Change fields of a tenant, which is made if need be. Raises ValueError, StorageUnavailable.

    A quota holds for what is accepted from then on: what waits may be more.
    """
    _check(changes)
    with db.write() as connection:
        make_tenant(connection, db, name)
        # What waits is not known of one that had no quota: counted at its first accept.
        changed = connection.execute(
            update(tenants)
            .where(tenants.c.name == name)
            .values(**changes, recount_at=0.0, waiting_tokens=UNCOUNTED)
            .returning(*TENANT_COLUMNS)
        )
        return tenant_of(changed.mappings().one())


def _check(changes: dict[str, float | None]) -> None:
    for name, value in changes.items():
        if name == "weight":
            if value is None or not LEAST_WEIGHT <= value <= MOST_WEIGHT:
                raise ValueError(f"a weight is a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}")
        elif value is not None and not 1 <= value <= MOST_LIMIT[name]:
            raise ValueError(f"{name} is a whole number from 1 to {MOST_LIMIT[name]}")


_ALL = select(*TENANT_COLUMNS).order_by(tenants.c.name)
_FIND = select(*TENANT_COLUMNS).where(tenants.c.name == bindparam("name"))
