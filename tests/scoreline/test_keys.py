"""``scoreline keys`` and ``scoreline tenants``: what they print, where, and how they exit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import update

from jobs.store.database import Database
from jobs.store.tables import api_keys
from jobs.tenancy.keys import KEY, Scope, create_key, find_key, list_keys, parse_key
from jobs.tenancy.tenants import Tenant, find_tenant
from settings.store import StoreSettings
from tests.forked.running import ON_A_DATABASE, run
from tests.services import free_port


def scoreline(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("scoreline", *arguments, imports=ON_A_DATABASE, environment=os.environ | {"SCORELINE_DATABASE_URL": url})


@pytest.mark.slow
def test_a_key_is_printed_once_listed_without_its_secret_and_revoked(sqlite_url: str) -> None:
    arguments = ("--name", "laptop", "--tenant", "acme", "--scopes", "score,read", "--expires-in", "90d")
    made = scoreline(sqlite_url, "keys", "create", *arguments)
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    assert KEY.fullmatch(key), "nothing but the key, so that a script can read it"
    parsed = parse_key(key)
    assert parsed is not None
    key_id, secret = parsed
    assert secret not in made.stderr
    database = Database.open(StoreSettings(database_url=sqlite_url))
    stored = find_key(database, key_id)
    assert stored is not None
    assert stored.scopes == {Scope.SCORE, Scope.READ}
    assert stored.usable_seconds == pytest.approx(90 * 86_400, abs=120)

    listed = scoreline(sqlite_url, "keys", "list").stdout
    assert secret not in listed
    [_, line] = listed.splitlines()
    assert line.split()[:4] == [key_id, "acme", "laptop", "read,score"]
    assert len(scoreline(sqlite_url, "keys", "list", "--tenant", "other").stdout.splitlines()) == 1

    everything = parse_key(scoreline(sqlite_url, "keys", "create", "--name", "all").stdout.strip())
    assert everything is not None
    by_default = find_key(database, everything[0])
    assert by_default is not None
    assert (by_default.tenant, by_default.scopes, by_default.usable_seconds) == (
        Tenant("default"),
        frozenset(Scope),
        None,
    )

    revoked = scoreline(sqlite_url, "keys", "revoke", key_id)
    assert (revoked.returncode, revoked.stdout) == (0, "")
    assert list_keys(database)[0].revoked_at is not None
    database.close()


@pytest.mark.slow
def test_a_tenants_share_and_limits_are_set_one_by_one(sqlite_url: str) -> None:
    database = Database.open(StoreSettings(database_url=sqlite_url))
    first = scoreline(sqlite_url, "tenants", "create", "acme", "--weight", "3", "--max-waiting-tokens", "5000")
    assert first.stdout.splitlines()[1].split() == ["acme", "3", "5000", "none", "none", "all", "-"]
    second = scoreline(
        sqlite_url, "tenants", "set", "acme", "--max-waiting-tokens", "none", "--requests-per-second", "7"
    )
    assert second.returncode == 0, second.stderr
    assert find_tenant(database, "acme") == Tenant("acme", 3.0, None, 7, None)
    third = scoreline(sqlite_url, "tenants", "set", "acme", "--models", "triage, rerank")
    assert third.returncode == 0, third.stderr
    assert find_tenant(database, "acme") == Tenant("acme", 3.0, None, 7, None, models=("triage", "rerank"))
    assert scoreline(sqlite_url, "tenants", "set", "acme", "--models", "all").returncode == 0
    assert find_tenant(database, "acme") == Tenant("acme", 3.0, None, 7, None)
    names = [line.split()[0] for line in scoreline(sqlite_url, "tenants", "list").stdout.splitlines()]
    assert names == ["TENANT", "acme", "default"]
    database.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("keys", "revoke", "aaaa"), "no key 'aaaa'"),
        (("keys", "revoke", "--help-me"), "help-me"),
        (("tenants", "set", "acme", "--weight", "0"), "weight"),
        *(
            pytest.param(arguments, says, marks=pytest.mark.slow)
            for arguments, says in (
                (("keys", "create", "--name", "x", "--tenant", "Not A Name"), "tenant"),
                (("keys", "create", "--name", "x", "--scopes", "everything"), "score,read,webhooks"),
                (("keys", "create", "--name", "x", "--expires-in", "soon"), "90d"),
                (("keys", "create", "--name", "x", "--expires-in", "999999999d"), "3650 days"),
                (("tenants", "set", "acme", "--requests-per-second", "many"), "requests-per-second"),
            )
        ),
    ],
)
def test_errors_of_the_keys_commands_are_printed(sqlite_url: str, arguments: tuple[str, ...], says: str) -> None:
    outcome = scoreline(sqlite_url, *arguments)
    assert outcome.returncode != 0
    assert says in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout == ""


@pytest.mark.slow
def test_a_database_that_is_away_or_was_never_migrated_is_reported(tmp_path: Path) -> None:
    away = f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/none"
    for url in (away, f"sqlite:///{tmp_path / 'empty.db'}"):
        outcome = scoreline(url, "keys", "list")
        assert (outcome.returncode, outcome.stdout) == (3, "")
        [_] = outcome.stderr.splitlines()


@pytest.mark.slow
def test_a_key_whose_expiry_is_no_valid_date_is_still_listed(sqlite_url: str) -> None:
    database = Database.open(StoreSettings(database_url=sqlite_url))
    _, record = create_key(database, "acme", "old", [Scope.READ], expires_in=60.0)
    with database.write() as connection:
        connection.execute(update(api_keys).values(expires_at=1e14))
    database.close()
    listed = scoreline(sqlite_url, "keys", "list")
    assert listed.returncode == 0, listed.stderr
    [_, line] = listed.stdout.splitlines()
    assert line.startswith(record.id)
    assert "after 9999" in line
