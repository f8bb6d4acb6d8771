"""API keys: ``sk_sl_ID_SECRET``, made once and shown once.

The id is public: a key is found by it, and named by it in lists. Of the secret the store has the SHA-256 alone. It is
256 random bits, not a password: nobody finds it by trying, so nothing is won by a slower hash or a salt.
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

from jobs.store.database import Database
from jobs.store.tables import api_keys, tenants
from jobs.tenancy.tenants import TENANT_COLUMNS, Tenant, make_tenant, tenant_of

PREFIX = "sk_sl_"
ID_BYTES, SECRET_BYTES = 10, 32
KEY = re.compile(rf"{PREFIX}([a-z2-7]{{16}})_([a-z2-7]{{52}})")
LONGEST_NAME = 128
LONGEST_DAYS = 3_650
"""For so long at most a key is made that expires."""
USED_SECONDS = 60.0
"""How often at most the last use of a key is written down."""
IDS_PER_UPDATE = 1_000


class Scope(StrEnum):
    """What a key may be used for."""

    SCORE = "score"
    """Submit, call, tokenise, cancel, delete."""
    READ = "read"
    """Jobs, scores, models."""
    WEBHOOKS = "webhooks"
    """The secrets that webhooks are signed with, and sending them again."""


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
    """What it takes to check a credential. usable_seconds: until it expires, None: never; 0 where it is revoked."""

    id: str
    secret_sha256: str
    tenant: Tenant
    scopes: frozenset[Scope]
    usable_seconds: float | None


def parse_key(credential: str) -> tuple[str, str] | None:
    """The id and the secret of what looks like a key; None of what does not."""
    found = KEY.fullmatch(credential)
    return (found[1], found[2]) if found else None


def secret_hash(secret: str) -> str:
    """What is kept of a secret."""
    return sha256(secret.encode()).hexdigest()


def create_key(
    db: Database, tenant: str, name: str, scopes: Collection[Scope], expires_in: float | None = None
) -> tuple[str, KeyRecord]:
    """Make a key, and its tenant if need be. Returns the key, which is nowhere else, and its record.

    expires_in: seconds. Raises ValueError, StorageUnavailable.
    """
    if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
        raise ValueError(f"a key's name has 1 to {LONGEST_NAME} printable characters")
    if not scopes:
        raise ValueError(f"a key has at least one scope: {', '.join(Scope)}")
    if expires_in is not None and expires_in <= 0:
        raise ValueError("a key expires after some time, not before it is made")
    if expires_in is not None and expires_in > LONGEST_DAYS * 86_400.0:
        raise ValueError(f"a key expires within {LONGEST_DAYS} days, or never")
    key_id, secret = _random(ID_BYTES), _random(SECRET_BYTES)
    with db.write() as connection:
        make_tenant(connection, db, tenant)
        row = connection.execute(
            insert(api_keys)
            .values(
                id=key_id,
                tenant=tenant,
                name=name,
                secret_sha256=secret_hash(secret),
                scopes=sorted(scopes),
                created_at=db.now,
                expires_at=None if expires_in is None else db.now + expires_in,
            )
            .returning(*_LISTED)
        ).one()
    return f"{PREFIX}{key_id}_{secret}", _record(row._asdict())


def _random(count: int) -> str:
    return base64.b32encode(secrets.token_bytes(count)).decode().rstrip("=").lower()


def find_key(db: Database, key_id: str) -> StoredKey | None:
    """The key with an id, also one that is revoked or has expired. Raises StorageUnavailable."""
    with db.read() as connection:
        row = connection.execute(
            select(
                *api_keys.c["id", "secret_sha256", "scopes", "revoked_at"],
                (api_keys.c.expires_at - db.now).label("seconds"),
                *TENANT_COLUMNS,
            )
            .join(tenants, tenants.c.name == api_keys.c.tenant)
            .where(api_keys.c.id == bindparam("key_id")),
            {"key_id": key_id},
        ).one_or_none()
    if row is None:
        return None
    seconds = row.seconds if row.revoked_at is None else 0.0
    return StoredKey(row.id, row.secret_sha256, tenant_of(row._mapping), _scopes(row.scopes), seconds)


def list_keys(db: Database, tenant: str | None = None) -> list[KeyRecord]:
    """Keys, also those that can't be used any more, the oldest first. tenant: None for all."""
    query = select(*_LISTED).order_by(api_keys.c.created_at, api_keys.c.id)
    if tenant is not None:
        query = query.where(api_keys.c.tenant == tenant)
    with db.read() as connection:
        return [_record(row._asdict()) for row in connection.execute(query)]


def revoke_key(db: Database, key_id: str) -> bool:
    """Revoke a key for good. False if there is none of this id; one that is revoked stays as it is."""
    with db.write() as connection:
        connection.execute(
            update(api_keys).where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None)).values(revoked_at=db.now)
        )
        return connection.scalar(select(api_keys.c.id).where(api_keys.c.id == key_id)) is not None


def has_usable_key(db: Database) -> bool:
    """Whether anybody could come with a stored key. Raises StorageUnavailable."""
    db.check()
    with db.read() as connection:
        return bool(connection.scalar(select(exists().where(_usable(db)))))


def note_use(db: Database, key_ids: Iterable[str]) -> None:
    """Write down that keys were used now, those of which it was written a while ago. Raises StorageUnavailable."""
    ids = sorted(key_ids)
    long_ago = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at <= db.now - USED_SECONDS)
    for start in range(0, len(ids), IDS_PER_UPDATE):
        with db.write(durable=False) as connection:
            # Locked in order first: another process writes down the same ones. Whose it holds are written by then.
            some = api_keys.c.id.in_(ids[start : start + IDS_PER_UPDATE])
            free = connection.scalars(
                select(api_keys.c.id)
                .where(some, long_ago)
                .order_by(api_keys.c.id)
                .with_for_update(key_share=True, skip_locked=True)
            ).all()
            connection.execute(update(api_keys).where(api_keys.c.id.in_(free)).values(last_used_at=db.now))


def _usable(db: Database) -> ColumnElement[bool]:
    return api_keys.c.revoked_at.is_(None) & or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > db.now)


_LISTED = api_keys.c["id", "tenant", "name", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at"]


def _record(row: dict[str, object]) -> KeyRecord:
    return KeyRecord(**row | {"scopes": _scopes(row["scopes"])})  # type: ignore[arg-type]


def _scopes(stored: object) -> frozenset[Scope]:
    """Those that this version knows: a later one may have stored others."""
    assert isinstance(stored, list)
    return frozenset(Scope(scope) for scope in stored if scope in set(Scope))
