"""API keys: ``sk_sl_ID_SECRET``, shown only when they are created.

The id is public; keys are looked up and listed by it. Of the secret only the SHA-256 is stored. The secret is 256
random bits and not a password, so it can't be guessed, and a slower hash or a salt would add no security.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from sqlalchemy import ColumnElement, bindparam, exists, insert, or_, select, update

from jobs.store.clock import NOW, is_to_come
from jobs.store.database import Database, Transaction
from jobs.store.tables import api_keys, tenants
from jobs.tenancy.changes import Action, record_change
from jobs.tenancy.tenants import TENANT_COLUMNS, Tenant, ensure_tenant, tenant_from_row

PREFIX = "sk_sl_"
ID_BYTES, SECRET_BYTES = 10, 32
KEY = re.compile(rf"{PREFIX}([a-z2-7]{{16}})_([a-z2-7]{{52}})")
MAX_NAME_LENGTH = 128
MAX_LIFETIME_DAYS = 3_650  # of a key that expires
LAST_USED_RESOLUTION_SECONDS = 60.0  # least time between two updates of a key's last use
IDS_PER_UPDATE = 1_000


class Scope(StrEnum):
    """What a key may be used for."""

    SCORE = "score"  # submit, call, tokenize, cancel, delete
    READ = "read"  # jobs, scores, models
    WEBHOOKS = "webhooks"  # the secrets that webhooks are signed with, and sending them again


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as it is listed, without its secret. Times are Unix seconds on the database's clock."""

    id: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What is needed to check a credential."""

    id: str
    secret_sha256: str
    tenant: Tenant
    scopes: frozenset[Scope]
    usable_seconds: float | None  # until it expires; None: it never does; 0: it is revoked


def parse_key(credential: str) -> tuple[str, str] | None:
    """Return the id and the secret in a credential; None if it does not have the form of a key."""
    found = KEY.fullmatch(credential)
    return (found[1], found[2]) if found else None


def hash_secret(secret: str) -> str:
    """Return what is stored of a secret."""
    return sha256(secret.encode()).hexdigest()


def create_key(
    db: Database, tenant: str, name: str, scopes: Collection[Scope], expires_in: float | None = None
) -> tuple[str, KeyRecord]:
    """Create a key, and its tenant if there is none. Returns the key, which is stored nowhere, and its record.

    expires_in: seconds. Raises ValueError, StorageUnavailable.
    """
    if not 1 <= len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError(f"a key's name has 1 to {MAX_NAME_LENGTH} printable characters")
    if not scopes:
        raise ValueError(f"a key has at least one scope: {', '.join(Scope)}")
    if expires_in is not None and expires_in <= 0:
        raise ValueError("a key expires after some time, not before it is made")
    if expires_in is not None and expires_in > MAX_LIFETIME_DAYS * 86_400.0:
        raise ValueError(f"a key expires within {MAX_LIFETIME_DAYS} days, or never")
    key_id, secret = _random(ID_BYTES), _random(SECRET_BYTES)
    with db.write() as tx:
        ensure_tenant(tx, tenant)
        row = tx.execute(
            insert(api_keys)
            .values(
                id=key_id,
                tenant=tenant,
                name=name,
                secret_sha256=hash_secret(secret),
                scopes=sorted(scopes),
                created_at=NOW,
                expires_at=None if expires_in is None else NOW + expires_in,
            )
            .returning(*_LISTED)
        ).one()
        record_change(tx, Action.KEY_CREATED, tenant, {"key": key_id, "name": name, "scopes": sorted(scopes)})
    return f"{PREFIX}{key_id}_{secret}", _record(row._asdict())


def _random(count: int) -> str:
    return base64.b32encode(secrets.token_bytes(count)).decode().rstrip("=").lower()


def find_key(db: Database, key_id: str) -> StoredKey | None:
    """Return the key with this id, even if it is revoked or has expired. Raises StorageUnavailable."""
    with db.read() as tx:
        row = tx.execute(
            select(
                *api_keys.c["id", "secret_sha256", "scopes", "revoked_at"],
                (api_keys.c.expires_at - NOW).label("seconds"),
                *TENANT_COLUMNS,
            )
            .join(tenants, tenants.c.name == api_keys.c.tenant)
            .where(api_keys.c.id == bindparam("key_id")),
            {"key_id": key_id},
        ).one_or_none()
    if row is None:
        return None
    seconds = row.seconds if row.revoked_at is None else 0.0
    return StoredKey(row.id, row.secret_sha256, tenant_from_row(row._mapping), _scopes(row.scopes), seconds)


def list_keys(db: Database, tenant: str | None = None) -> list[KeyRecord]:
    """Return the keys of a tenant, or of all tenants, the oldest first, with those that are revoked or have expired."""
    query = select(*_LISTED).order_by(api_keys.c.created_at, api_keys.c.id)
    if tenant is not None:
        query = query.where(api_keys.c.tenant == tenant)
    with db.read() as tx:
        return [_record(row._asdict()) for row in tx.execute(query)]


def revoke_key(db: Database, key_id: str) -> bool:
    """Revoke a key permanently. Returns False if no key has this id. A revoked key stays as it is."""
    with db.write() as tx:
        if revoke_keys(tx, api_keys.c.id == key_id):
            return True
        return tx.scalar(select(api_keys.c.id).where(api_keys.c.id == key_id)) is not None


def revoke_keys(tx: Transaction, which: ColumnElement[bool]) -> int:
    """Revoke keys that are not revoked yet. Returns how many."""
    revoked = tx.execute(
        update(api_keys)
        .where(which, api_keys.c.revoked_at.is_(None))
        .values(revoked_at=NOW)
        .returning(*api_keys.c["id", "tenant", "name"])
    ).all()
    for key in revoked:
        record_change(tx, Action.KEY_REVOKED, key.tenant, {"key": key.id, "name": key.name})
    return len(revoked)


def has_usable_key(db: Database) -> bool:
    """Whether any stored key is neither revoked nor expired. Raises StorageUnavailable."""
    db.check()
    with db.read() as tx:
        return bool(tx.scalar(select(exists().where(_USABLE))))


def record_use(db: Database, key_ids: Iterable[str]) -> None:
    """Set the last use of keys to now, unless it was set a short while ago. Raises StorageUnavailable."""
    ids = sorted(key_ids)
    outdated = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at <= NOW - LAST_USED_RESOLUTION_SECONDS)
    for start in range(0, len(ids), IDS_PER_UPDATE):
        with db.write(durable=False) as tx:
            # Other processes record the same keys. Those that another one has locked are left out: it updates them.
            some = api_keys.c.id.in_(ids[start : start + IDS_PER_UPDATE])
            free = tx.scalars(
                select(api_keys.c.id)
                .where(some, outdated)
                .order_by(api_keys.c.id)
                .with_for_update(key_share=True, skip_locked=True)
            ).all()
            tx.execute(update(api_keys).where(api_keys.c.id.in_(free)).values(last_used_at=NOW))


_USABLE = api_keys.c.revoked_at.is_(None) & is_to_come(api_keys.c.expires_at)
_LISTED = api_keys.c["id", "tenant", "name", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at"]


def _record(row: dict[str, object]) -> KeyRecord:
    return KeyRecord(**row | {"scopes": _scopes(row["scopes"])})  # type: ignore[arg-type]


def _scopes(stored: object) -> frozenset[Scope]:
    """Return the stored scopes that this version knows. A later version may have stored others."""
    assert isinstance(stored, list)
    return frozenset(Scope(scope) for scope in stored if scope in set(Scope))
