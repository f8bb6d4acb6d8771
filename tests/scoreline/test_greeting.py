"""What ``scoreline up`` says once it is ready, by what the key of its terminal may do."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key
from jobs.tenancy.tenants import set_tenant
from scoreline.client import KEY_VARIABLE
from scoreline.embedded import BOOTSTRAP_VARIABLE, EmbeddedService, EmbeddedSettings, StopRequest
from scoreline.progress_display import Narrator
from scoreline.up import greet
from tests.api.serving import KEY, RunningApi, running_api

HOST = "0.0.0.0"


@pytest.fixture
def api(model_directory: Path, sqlite_url: str, tmp_path: Path) -> Iterator[RunningApi]:
    """What answers on an address that others reach, so that everybody needs a key."""
    with running_api(model_directory, sqlite_url, tmp_path, with_worker=False, host=HOST) as (api, _):
        yield api


@pytest.fixture
def store(api: RunningApi) -> Iterator[Database]:
    database = Database.open(api.store)
    yield database
    database.close()


def greeting(api: RunningApi, monkeypatch: pytest.MonkeyPatch, folder: Path, **keys: str) -> str:
    """What is said by a service with these keys in its environment."""
    for name in (BOOTSTRAP_VARIABLE, KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name, key in keys.items():
        monkeypatch.setenv(name, key)
    settings = EmbeddedSettings("model", folder, HOST, int(api.url.rpartition(":")[2]))
    said = io.StringIO()
    greet(EmbeddedService(settings, StopRequest(), lambda *_: None), Narrator(Console(file=said)))
    assert f"Scoreline is ready at {api.url}, " in said.getvalue()
    assert f"{api.url}/docs" in said.getvalue()
    return said.getvalue()


def test_the_command_names_the_variable_that_the_key_is_in(
    api: RunningApi, store: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key, _ = create_key(store, "acme", "terminal", list(Scope))
    named = '-H "Authorization: Bearer $%s" '
    assert named % KEY_VARIABLE in greeting(api, monkeypatch, tmp_path, **{KEY_VARIABLE: key})
    bootstrap = greeting(api, monkeypatch, tmp_path, **{KEY_VARIABLE: key, BOOTSTRAP_VARIABLE: KEY})
    assert named % BOOTSTRAP_VARIABLE in bootstrap
    assert KEY not in bootstrap


@pytest.mark.parametrize("scope", Scope)
def test_a_key_that_may_not_try_it_keeps_nothing_from_starting(
    api: RunningApi, store: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: Scope
) -> None:
    key, _ = create_key(store, "acme", "terminal", [scope])
    said = greeting(api, monkeypatch, tmp_path, **{KEY_VARIABLE: key})
    assert "a key with the scope" in said
    assert "curl" not in said


def test_nor_does_one_without_a_key_or_one_of_which_too_much_was_asked(
    api: RunningApi, store: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "for those who have a key" in greeting(api, monkeypatch, tmp_path)
    key, _ = create_key(store, "acme", "terminal", list(Scope))
    set_tenant(store, "acme", requests_per_minute=1)
    assert "too many requests" in greeting(api, monkeypatch, tmp_path, **{KEY_VARIABLE: key})
