"""What ``scoreline up`` prints when it is ready, depending on what the key in its environment may do."""

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
from scoreline.embedded import BOOTSTRAP_KEY_VARIABLE, EmbeddedService, EmbeddedSettings, StopRequest
from scoreline.terminal.progress_display import ProgressDisplay
from scoreline.up import greet
from tests.api.serving import KEY, RunningApi, running_api
from tests.scoreline.client.unreliable import Server, answering, refused

HOST = "0.0.0.0"


@pytest.fixture
def api(model_directory: Path, sqlite_url: str, tmp_path: Path) -> Iterator[RunningApi]:
    """An API on a public address, where everybody needs a key."""
    with running_api(model_directory, sqlite_url, tmp_path, with_worker=False, host=HOST) as (api, _):
        yield api


@pytest.fixture
def store(api: RunningApi) -> Iterator[Database]:
    database = Database.open(api.store)
    yield database
    database.close()


def greeting(api: RunningApi | Server, monkeypatch: pytest.MonkeyPatch, folder: Path, **keys: str) -> str:
    """Return what is printed with these keys in the environment."""
    for name in (BOOTSTRAP_KEY_VARIABLE, KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name, key in keys.items():
        monkeypatch.setenv(name, key)
    settings = EmbeddedSettings("model", folder, HOST, int(api.url.rpartition(":")[2]))
    said = io.StringIO()
    greet(EmbeddedService(settings, StopRequest(), lambda *_: None), ProgressDisplay(Console(file=said)))
    assert f"Scoreline is ready at {api.url}, " in said.getvalue()
    assert f"{api.url}/docs" in said.getvalue()
    return said.getvalue()


def test_the_printed_curl_command_names_the_variable_that_holds_the_key(
    api: RunningApi, store: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key, _ = create_key(store, "acme", "terminal", list(Scope))
    named = '-H "Authorization: Bearer $%s" '
    assert named % KEY_VARIABLE in greeting(api, monkeypatch, tmp_path, **{KEY_VARIABLE: key})
    bootstrap = greeting(api, monkeypatch, tmp_path, **{KEY_VARIABLE: key, BOOTSTRAP_KEY_VARIABLE: KEY})
    assert named % BOOTSTRAP_KEY_VARIABLE in bootstrap
    assert KEY not in bootstrap


@pytest.mark.parametrize("scope", Scope)
def test_up_starts_even_if_its_key_may_not_score(
    api: RunningApi, store: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: Scope
) -> None:
    key, _ = create_key(store, "acme", "terminal", [scope])
    said = greeting(api, monkeypatch, tmp_path, **{KEY_VARIABLE: key})
    assert "a key with the scope" in said
    assert "curl" not in said


def test_up_starts_even_without_a_key_or_with_a_rate_limited_one(
    api: RunningApi, store: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "for those who have a key" in greeting(api, monkeypatch, tmp_path)
    key, _ = create_key(store, "acme", "terminal", list(Scope))
    set_tenant(store, "acme", requests_per_minute=1)
    assert "too many requests" in greeting(api, monkeypatch, tmp_path, **{KEY_VARIABLE: key})


def test_up_goes_on_whatever_the_service_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with answering(lambda _: refused(500, "internal_error")) as server:
        assert "but here it says: this is internal_error" in greeting(server, monkeypatch, tmp_path)
