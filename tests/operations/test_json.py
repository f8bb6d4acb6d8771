"""What the commands on a database print for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from jobs.invariants import CHECKS
from jobs.store.database import Database
from operations import changes, check, keys, tenants, webhook_secret
from settings.store import StoreSettings
from tests.jobs.work import submit


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    database = Database.open(StoreSettings(database_url=sqlite_url))
    yield database
    database.close()


def test_keys_are_made_listed_and_revoked(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> Any:
        assert keys._run(database, keys._parser().parse_args([*words, "--json"])) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return json.loads(said.out)

    made = printed("create", "--name", "laptop", "--tenant", "acme", "--scopes", "score,read")
    assert made.pop("key").startswith(f"sk_sl_{made['id']}_")
    assert (made["tenant"], made["name"], made["scopes"], made["expires_at"]) == (
        "acme",
        "laptop",
        ["read", "score"],
        None,
    )
    assert printed("list") == printed("list", "--tenant", "acme") == [made]
    assert printed("list", "--tenant", "another") == []
    assert printed("revoke", made["id"]) == {"id": made["id"], "revoked": True}
    assert printed("list")[0]["revoked_at"] >= made["created_at"]


def test_tenants_are_set_and_listed(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    limits = {
        "max_waiting_tokens": 5000,
        "requests_per_second": None,
        "requests_per_minute": None,
        "suspended_at": None,
        "models": None,
    }
    acme = {"name": "acme", "weight": 3.0} | limits
    parser = tenants._parser()

    def printed(*words: str) -> Any:
        assert tenants._run(database, parser.parse_args([*words, "--json"])) == 0
        return json.loads(capsys.readouterr().out)

    assert printed("create", "acme", "--weight", "3") == [acme | {"max_waiting_tokens": None}]
    assert printed("set", "acme", "--max-waiting-tokens", "5000") == [acme]
    assert acme in printed("list")
    assert printed("suspend", "acme")[0]["suspended_at"] > 0
    assert printed("resume", "acme") == [acme]
    submit(database, tenant="acme")
    assert printed("purge", "acme", "--yes") == {"jobs": 1, "batches": 0, "files": 0}
    with pytest.raises(ValueError, match=r"0 jobs .* repeat it with --yes"):
        tenants._run(database, parser.parse_args(["delete", "acme"]))
    recorded = [(change["action"], change["detail"]) for change in _changes(database, capsys, "--tenant", "acme")]
    assert recorded == [
        ("tenant.purged", {"jobs": 1, "batches": 0, "files": 0}),
        ("tenant.resumed", {}),
        ("tenant.suspended", {}),
        ("tenant.set", {"max_waiting_tokens": 5000}),
        ("tenant.set", {"weight": 3.0}),
        ("tenant.created", {}),
    ]
    assert len(_changes(database, capsys, "--limit", "2")) == 2


def _changes(database: Database, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert changes._run(database, changes._parser().parse_args(["list", *words, "--json"])) == 0
    return json.loads(capsys.readouterr().out)


def test_rules_are_checked(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    broken = submit(database, chunks=2)
    assert check._check(database, as_json=True) == 0
    assert [rule["holds"] for rule in json.loads(capsys.readouterr().out)] == [True] * len(CHECKS)
    with database.write() as tx:
        tx.execute(text("UPDATE jobs SET remaining_chunks = 1 WHERE id = :id"), {"id": broken})
    assert check._check(database, as_json=True) == check.VIOLATED
    violated = [rule for rule in json.loads(capsys.readouterr().out) if not rule["holds"]]
    assert all(rule["rule"] and rule["says"] for rule in violated)
    assert any(broken in rule["examples"] for rule in violated)


def test_secrets_of_webhooks_are_shown(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    for rotates, count in ((False, 1), (True, 2)):
        webhook_secret._show(database, "default", rotate=rotates, as_json=True)
        shown = json.loads(capsys.readouterr().out)
        assert [one["secret"].startswith("whsec_") for one in shown] == [True] * count
        assert shown[0]["expires_at"] is None
