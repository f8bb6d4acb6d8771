"""Keys and tenants in the store: a key is stored as a hash, and unusable when it is revoked or has expired."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest
from sqlalchemy import select

from jobs.store.database import Database
from jobs.store.tables import api_keys
from jobs.tenancy.keys import (
    KEY,
    LAST_USED_RESOLUTION_SECONDS,
    MAX_LIFETIME_DAYS,
    Scope,
    create_key,
    find_key,
    has_usable_key,
    list_keys,
    parse_key,
    record_use,
    revoke_key,
)
from jobs.tenancy.tenants import (
    DEFAULT_TENANT,
    Tenant,
    create_tenant,
    find_tenant,
    list_tenants,
    set_tenant,
    suspend_tenant,
)
from tests.databases import ON_BOTH
from tests.jobs.conftest import HandClock

ALL = frozenset(Scope)


@ON_BOTH
def test_only_the_hash_of_a_keys_secret_is_stored(store: Database) -> None:
    key, record = create_key(store, "acme", "laptop", [Scope.READ])
    assert KEY.fullmatch(key)
    parsed = parse_key(key)
    assert parsed is not None
    key_id, secret = parsed
    assert record.id == key_id
    with store.read() as connection:
        row = connection.execute(select(api_keys)).one()
    assert row.secret_sha256 == sha256(secret.encode()).hexdigest()
    assert secret not in str(row._asdict())
    assert secret not in repr(record)
    stored = find_key(store, key_id)
    assert stored is not None
    assert (stored.tenant, stored.scopes, stored.usable_seconds) == (Tenant("acme"), frozenset({Scope.READ}), None)


def test_keys_are_unique(store: Database) -> None:
    keys = {create_key(store, "acme", "one of many", ALL)[0] for _ in range(20)}
    assert len({parse_key(key) for key in keys}) == 20


@ON_BOTH
def test_an_expired_key_and_a_revoked_one_are_unusable(timed_store: Database, clock: HandClock) -> None:
    _, expiring = create_key(timed_store, "acme", "expiring", ALL, expires_in=100.0)
    _, revoked = create_key(timed_store, "acme", "revoked", ALL)
    assert has_usable_key(timed_store)
    clock.turn(40)
    assert find_key(timed_store, expiring.id).usable_seconds == 60.0  # type: ignore[union-attr]
    assert revoke_key(timed_store, revoked.id)
    clock.turn(60)
    assert revoke_key(timed_store, revoked.id), "twice is once"
    for record in (expiring, revoked):
        assert find_key(timed_store, record.id).usable_seconds == 0.0  # type: ignore[union-attr]
    assert not has_usable_key(timed_store)
    revoked_at = {key.name: key.revoked_at for key in list_keys(timed_store, "acme")}
    assert revoked_at == {"expiring": None, "revoked": clock.now - 60}
    assert list_keys(timed_store, "other") == []


def test_an_unknown_key_is_not_found(store: Database) -> None:
    assert find_key(store, "a" * 16) is None
    assert not revoke_key(store, "a" * 16)
    assert not has_usable_key(store)


@ON_BOTH
def test_the_last_use_is_recorded_once_a_minute(timed_store: Database, clock: HandClock) -> None:
    ids = [create_key(timed_store, "acme", str(n), ALL)[1].id for n in range(3)]
    began = clock.now

    def used() -> dict[str, float | None]:
        return {key.id: key.last_used_at for key in list_keys(timed_store)}

    record_use(timed_store, ids[:2])
    clock.turn(LAST_USED_RESOLUTION_SECONDS - 1)
    record_use(timed_store, ids[:1])
    assert used() == {ids[0]: began, ids[1]: began, ids[2]: None}
    clock.turn(1)
    record_use(timed_store, [*ids[:1], "unknown"])
    assert used() == {ids[0]: clock.now, ids[1]: began, ids[2]: None}


@pytest.mark.parametrize(
    ("tenant", "name", "scopes", "expires_in", "says"),
    [
        ("Acme Inc", "laptop", ALL, None, "tenant"),
        ("", "laptop", ALL, None, "tenant"),
        ("*", "laptop", ALL, None, "tenant"),
        ("a" * 65, "laptop", ALL, None, "tenant"),
        ("acme", "", ALL, None, "name"),
        ("acme", "two\nlines", ALL, None, "name"),
        ("acme", "laptop", [], None, "scope"),
        ("acme", "laptop", ALL, 0.0, "expires"),
    ],
)
def test_invalid_keys_are_not_created(
    store: Database, tenant: str, name: str, scopes: frozenset[Scope], expires_in: float | None, says: str
) -> None:
    with pytest.raises(ValueError, match=re.compile(says, re.IGNORECASE)):
        create_key(store, tenant, name, scopes, expires_in)
    assert list_keys(store) == []
    assert [tenant.name for tenant in list_tenants(store)] == [DEFAULT_TENANT]


@ON_BOTH
def test_a_tenant_is_made_with_its_first_key_and_changed_field_by_field(store: Database) -> None:
    create_key(store, "acme", "laptop", ALL)
    assert find_tenant(store, "acme") == Tenant("acme")
    set_tenant(store, "acme", weight=3.0, max_waiting_tokens=500)
    assert set_tenant(store, "acme", requests_per_minute=60) == Tenant("acme", 3.0, 500, None, 60)
    create_key(store, "acme", "another", ALL)
    assert find_tenant(store, "acme") == Tenant("acme", 3.0, 500, None, 60)
    assert set_tenant(store, "acme", max_waiting_tokens=None).max_waiting_tokens is None
    assert find_tenant(store, "nobody") is None


@ON_BOTH
def test_a_tenant_is_created_once_and_only_one_that_is_there_is_changed(store: Database) -> None:
    assert create_tenant(store, "acme", weight=3.0) == find_tenant(store, "acme") == Tenant("acme", 3.0)
    with pytest.raises(ValueError, match="already"):
        create_tenant(store, "acme")
    with pytest.raises(ValueError, match="no tenant 'acmee'"):
        set_tenant(store, "acmee", weight=2.0)
    with pytest.raises(ValueError, match="no tenant 'acmee'"):
        suspend_tenant(store, "acmee")
    assert [tenant.name for tenant in list_tenants(store)] == ["acme", DEFAULT_TENANT]


@pytest.mark.parametrize(
    "changes",
    [{"weight": 0}, {"weight": -1.0}, {"weight": float("nan")}, {"weight": None}, {"requests_per_second": 0}],
)
def test_invalid_limits_are_refused(store: Database, changes: dict[str, float | None]) -> None:
    with pytest.raises(ValueError, match=r"weight|requests_per_second"):
        set_tenant(store, "acme", **changes)


def test_a_key_that_expires_does_so_within_ten_years(store: Database) -> None:
    longest = MAX_LIFETIME_DAYS * 86_400.0
    create_key(store, "acme", "long", ALL, expires_in=longest)
    with pytest.raises(ValueError, match="3650 days"):
        create_key(store, "acme", "longer", ALL, expires_in=longest + 1.0)
