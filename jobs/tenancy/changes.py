"""The record of changes to keys, tenants, webhook secrets and models: who changed what and when. It is kept."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import insert, select

from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.tables import changes

MAX_BY = 320  # characters


class Action(StrEnum):
    """What was done. A change is recorded in the transaction that makes it."""

    KEY_CREATED = "key.created"
    KEY_REVOKED = "key.revoked"
    SECRET_ROTATED = "webhook_secret.rotated"
    TENANT_CREATED = "tenant.created"
    TENANT_SET = "tenant.set"
    TENANT_SUSPENDED = "tenant.suspended"
    TENANT_RESUMED = "tenant.resumed"
    TENANT_PURGED = "tenant.purged"
    TENANT_DELETED = "tenant.deleted"
    MODEL_ADDED = "model.added"
    MODEL_SET = "model.set"
    MODEL_RETIRED = "model.retired"


@dataclass(frozen=True, slots=True)
class Change:
    """A recorded change. It holds no secret."""

    at: float  # Unix seconds on the database's clock
    by: str  # USER@HOST of a command, or the key of a request
    action: Action | str  # a text, if a later version of the service recorded it
    tenant: str  # empty: the change concerns a model
    detail: Mapping[str, Any]  # what was set, or the id of the key


def record_change(
    tx: Transaction,
    action: Action,
    tenant: str,
    detail: Mapping[str, object] | None = None,
    *,
    by: str | None = None,
) -> None:
    """Record a change. by: who makes it; by default the user of this process."""
    who = (_user() if by is None else by)[:MAX_BY]
    tx.execute(insert(changes).values(at=NOW, by=who, action=action.value, tenant=tenant, detail=dict(detail or {})))


def list_changes(db: Database, *, tenant: str | None = None, limit: int) -> list[Change]:
    """Return the last changes, the newest first. tenant: those of this tenant alone."""
    query = select(*changes.c["at", "by", "action", "tenant", "detail"]).order_by(changes.c.id.desc()).limit(limit)
    if tenant is not None:
        query = query.where(changes.c.tenant == tenant)
    with db.read() as tx:
        return [Change(row.at, row.by, _action(row.action), row.tenant, row.detail) for row in tx.execute(query)]


def _action(stored: str) -> Action | str:
    return Action(stored) if stored in set(Action) else stored


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
