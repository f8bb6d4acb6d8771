"""``scoreline webhooks secret``: what it prints, and how it exits."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from sqlalchemy import func, select

from jobs.store.database import Database
from jobs.tenancy.tenants import create_tenant
from jobs.webhooks.tables import webhook_secrets
from settings.store import StoreSettings
from tests.databases import quick_on
from tests.forked.running import ON_A_DATABASE, run

SECRET = r"whsec_[A-Za-z0-9+/=]{32,}"


def secret(action: str, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"SCORELINE_DATABASE_URL": url}
    return run("scoreline", "webhooks", "secret", action, *options, imports=ON_A_DATABASE, environment=environment)


def test_a_rotation_shows_the_new_secret_and_when_the_old_one_expires(sqlite_url: str) -> None:
    shown = secret("show", sqlite_url).stdout.split()
    [only] = shown
    assert re.fullmatch(SECRET, only)
    new, old = secret("rotate", sqlite_url).stdout.splitlines()
    assert re.fullmatch(SECRET, new)
    assert re.fullmatch(rf"{re.escape(shown[0])}  until [-0-9]+T[:0-9]+Z", old)
    assert secret("show", sqlite_url).stdout.splitlines() == [new, old]
    database = Database.open(StoreSettings(database_url=sqlite_url))
    create_tenant(database, "another")
    database.close()
    assert secret("show", sqlite_url, "--tenant", "another").stdout.split()[0] not in (new, shown[0])


@quick_on("sqlite")
@pytest.mark.parametrize("action", [pytest.param("show", marks=pytest.mark.slow), "rotate"])
@pytest.mark.parametrize("tenant", ["tpyo", pytest.param("long" * 30, marks=pytest.mark.slow)])
def test_an_unknown_tenant_is_reported_and_gets_no_secret(store_url: str, action: str, tenant: str) -> None:
    outcome = secret(action, store_url, "--tenant", tenant)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    [line] = outcome.stderr.splitlines()
    assert f"there is no tenant '{tenant}'" in line
    database = Database.open(StoreSettings(database_url=store_url))
    with database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(webhook_secrets)) == 0
    database.close()


@pytest.mark.slow
def test_a_database_that_is_not_there_is_reported_in_one_line(tmp_path: object) -> None:
    shown = secret("show", f"sqlite:///{tmp_path}/empty.db")
    assert (shown.returncode, shown.stdout) == (3, "")
    assert "there is no such file" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1
