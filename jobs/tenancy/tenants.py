"""Tenants: the owners of jobs and keys, with their shares of the workers and their limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from sqlalchemy import RowMapping, bindparam, func, select, update

from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.tables import tenants
from jobs.store.upsert import insert_if_new
from jobs.tenancy.changes import Action, record_change

DEFAULT_TENANT = "default"  # the tenant of requests with the bootstrap key, or without a key where none is required

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
MIN_WEIGHT, MAX_WEIGHT = 0.01, 1_000.0
MAX_LIMITS = {"max_waiting_tokens": 2**53, "requests_per_second": 10**6, "requests_per_minute": 10**6}
Limit = float | list[str] | None

UNKNOWN_WAITING_TOKENS = 2**62
"""Counter of waiting tokens while the true number is unknown: above any quota, so that the first job has it counted."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant and its limits. A limit of None is no limit."""

    name: str
    weight: float = 1.0  # relative share of the workers among tenants with waiting work
    max_waiting_tokens: int | None = None  # in unfinished chunks, as :mod:`scoring.work` counts
    requests_per_second: int | None = None  # over all keys of the tenant
    requests_per_minute: int | None = None
    suspended_at: float | None = None  # Unix seconds; None: its requests are taken
    models: tuple[str, ...] | None = None  # the models that it may use, by their names; None: all

    def may_use(self, model: str) -> bool:
        """Return whether requests of the tenant may name a model."""
        return self.models is None or model in self.models


TENANT_COLUMNS = tenants.c[tuple(field.name for field in fields(Tenant))]


def tenant_from_row(row: RowMapping) -> Tenant:
    """Return the tenant of a row that has :data:`TENANT_COLUMNS`."""
    values = {column.name: row[column] for column in TENANT_COLUMNS}
    return Tenant(**values | {"models": None if values["models"] is None else tuple(values["models"])})


def find_tenant(db: Database, name: str) -> Tenant | None:
    """Return the tenant of this name. Raises StorageUnavailable."""
    with db.read() as tx:
        row = tx.execute(_FIND, {"name": name}).mappings().one_or_none()
    return None if row is None else tenant_from_row(row)


def list_tenants(db: Database) -> list[Tenant]:
    """Return all tenants, ordered by name."""
    with db.read() as tx:
        return [tenant_from_row(row) for row in tx.execute(_ALL).mappings()]


def ensure_tenant(tx: Transaction, name: str) -> bool:
    """Create a tenant without limits unless there is one of this name. Returns whether it is new.

    Raises ValueError for an invalid name.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a tenant: 1 to 64 of a-z, 0-9, '.', '_' and '-', no sign first")
    made = insert_if_new(tenants).values(name=name, created_at=NOW).returning(tenants.c.name)
    if tx.scalar(made) is None:
        return False
    record_change(tx, Action.TENANT_CREATED, name)
    return True


def create_tenant(db: Database, name: str, **limits: Limit) -> Tenant:
    """Create a tenant with these limits. Raises ValueError, also if there is one of this name; StorageUnavailable."""
    _check(limits)
    with db.write() as tx:
        if not ensure_tenant(tx, name):
            raise ValueError(f"there is a tenant {name!r} already; `scoreline tenants set` changes it")
        return _change(tx, name, limits) if limits else Tenant(name)


def set_tenant(db: Database, name: str, **changes: Limit) -> Tenant:
    """Change fields of a tenant. Raises ValueError, also if there is none of this name; StorageUnavailable.

    A new quota applies to jobs accepted from then on. The work that waits already may exceed it.
    """
    _check(changes)
    with db.write() as tx:
        return _change(tx, name, changes)


def _change(tx: Transaction, name: str, changes: dict[str, Limit]) -> Tenant:
    # The waiting work of a tenant that had no quota is unknown; it is counted when its next job is accepted.
    changed = tx.execute(
        update(tenants)
        .where(tenants.c.name == name)
        .values(**changes, recount_at=0.0, waiting_tokens=UNKNOWN_WAITING_TOKENS)
        .returning(*TENANT_COLUMNS)
    )
    tenant = _found(name, changed.mappings().one_or_none())
    record_change(tx, Action.TENANT_SET, name, changes)
    return tenant


def suspend_tenant(db: Database, name: str, *, suspended: bool = True) -> Tenant:
    """Have no request of a tenant taken; or, if not suspended, take them again. Raises ValueError, StorageUnavailable.

    Work that was accepted goes on. Processes notice it when they look the tenant's keys up again.
    """
    with db.write() as tx:
        since = func.coalesce(tenants.c.suspended_at, NOW) if suspended else None
        row = tx.execute(
            update(tenants).where(tenants.c.name == name).values(suspended_at=since).returning(*TENANT_COLUMNS)
        )
        tenant = _found(name, row.mappings().one_or_none())
        record_change(tx, Action.TENANT_SUSPENDED if suspended else Action.TENANT_RESUMED, name)
        return tenant


def _found(name: str, row: RowMapping | None) -> Tenant:
    if row is None:
        raise no_such_tenant(name)
    return tenant_from_row(row)


def no_such_tenant(name: str) -> ValueError:
    """Return the error for a name that no tenant has."""
    return ValueError(
        f"there is no tenant {name!r}; `scoreline tenants list` shows their names, and `create` makes a new one"
    )


def _check(changes: dict[str, Limit]) -> None:
    for name, value in changes.items():
        if name == "models":
            if not isinstance(value, list | None):
                raise ValueError("models is a list of names, or nothing for all models")
        elif isinstance(value, list):
            raise ValueError(f"{name} is no list")
        elif name == "weight":
            if value is None or not MIN_WEIGHT <= value <= MAX_WEIGHT:
                raise ValueError(f"a weight is a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
        elif value is not None and not 1 <= value <= MAX_LIMITS[name]:
            raise ValueError(f"{name} is a whole number from 1 to {MAX_LIMITS[name]}")


_ALL = select(*TENANT_COLUMNS).order_by(tenants.c.name)
_FIND = select(*TENANT_COLUMNS).where(tenants.c.name == bindparam("name"))
