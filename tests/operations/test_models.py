"""``scoreline models add``, ``set``, ``retire``, ``apply`` and ``list``: the catalogue of a database."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from jobs.catalogue import list_models
from jobs.store.database import Database
from jobs.store.tables import models as table
from jobs.tenancy.changes import list_changes
from jobs.tenancy.tenants import find_tenant
from operations import models, tenants
from settings.errors.mistakes import SettingError
from settings.store import StoreSettings
from tests.api.tiny_model import make_model_directory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_directory(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture
def store(store_url: str) -> Iterator[Database]:
    database = Database.open(StoreSettings(database_url=store_url))
    yield database
    database.close()


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Iterator[Database]:
    database = Database.open(StoreSettings(database_url=sqlite_url))
    yield database
    database.close()


def changed(database: Database, *words: str) -> list[dict[str, Any]]:
    """Carry out an action and return what it lists. Raises ValueError or SettingError, which the command prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert models._run(database, models._parser().parse_args([*words, "--json"])) == 0
    listed: list[dict[str, Any]] = json.loads(printed.getvalue())
    return listed


def test_a_model_is_added_changed_and_retired(store: Database, folder: Path) -> None:
    (added,) = changed(store, "add", "--model", str(folder), "--aliases", "t, u", "triage")
    assert (added["name"], added["aliases"], added["is_default"]) == ("triage", ["t", "u"], False)
    assert added["settings"] == {"model": str(folder)}
    assert added["card"]["context_length"] == 512
    (other,) = changed(store, "set", "--context-length", "100", "--default", "yes", "triage")
    assert other["version"] > added["version"]
    assert (other["card"]["context_length"], other["aliases"], other["is_default"]) == (100, ["t", "u"], True)
    (renamed,) = changed(store, "set", "--aliases", "v", "triage")
    assert (renamed["version"], renamed["aliases"]) == (other["version"], ["v"]), "nothing that is computed changed"
    (retired,) = changed(store, "retire", "triage")
    assert not retired["is_default"]
    assert retired["retired_at"] is not None
    assert changed(store, "list") == []
    assert [one["version"] for one in changed(store, "list", "--all")] == [added["version"], other["version"]]
    actions = [str(change.action) for change in list_changes(store, limit=10)]
    assert actions == ["model.retired", "model.set", "model.set", "model.added"]


def test_a_file_is_the_whole_catalogue(
    store: Database, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(store, "add", "--model", str(folder), "old")
    file = tmp_path / "models.toml"
    file.write_text(
        f'[models.a]\nmodel = "{folder}"\ndefault = true\naliases = ["first"]\n'
        f'[models.b]\nmodel = "{folder}"\nmax_items_per_call = 10\n'
    )
    listed = changed(store, "apply", str(file))
    assert [one["name"] for one in listed] == ["a", "b"]
    assert listed[1]["settings"]["max_items_per_call"] == 10
    assert [one.name for one in list_models(store)] == ["a", "b"]
    changes = len(list_changes(store, limit=100))
    again = changed(store, "apply", str(file))
    assert len(list_changes(store, limit=100)) == changes
    assert [one["version"] for one in again] == [one["version"] for one in listed], "the same file changes nothing"
    monkeypatch.setattr("sys.stdin", io.StringIO(file.read_text().partition("[models.b]")[0]))
    assert [one["name"] for one in changed(store, "apply", "-")] == ["a"]


def test_a_tenant_is_kept_to_models_by_their_names(sqlite_store: Database, folder: Path) -> None:
    changed(sqlite_store, "add", "--model", str(folder), "--aliases", "t,u", "triage")
    given = tenants._parser().parse_args(["create", "acme", "--models", "u, other, t", "--json"])
    with redirect_stdout(io.StringIO()):
        tenants._run(sqlite_store, given)
    tenant = find_tenant(sqlite_store, "acme")
    assert tenant is not None
    assert tenant.models == ("triage", "other")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["add", "x"], "model is missing"),
        (["add", "--model", "/nowhere/at/all", "x"], "/nowhere/at/all"),
        (["add", "--model", "FOLDER", "x:y"], "stands before an adapter's name"),
        (["add", "--model", "FOLDER", "default"], "it means the default"),
        (["add", "--model", "FOLDER", " x"], "printable"),
        (["add", "--model", "FOLDER", "there"], "`scoreline models set` changes it"),
        (["add", "--model", "FOLDER", "--aliases", "there", "x"], "is a name of 'there' already"),
        (["add", "--model", "FOLDER", "--context-length", "9999", "x"], "more than the 512 tokens"),
        (["add", "--model", "FOLDER", "--context-length", "0", "x"], "SCORELINE_CONTEXT_LENGTH"),
        (["add", "--model", "FOLDER", "--template", "nobody", "x"], "there is no template 'nobody'"),
        (["add", "--model", "FOLDER", "--revision", "main", "x"], "a revision belongs to a model on the hub"),
        (["set", "--context-length", "9", "nobody"], "there is no model 'nobody' in the catalogue; it has there"),
        (["retire", "nobody"], "there is no model 'nobody' in the catalogue; it has there"),
        (["apply", "/nowhere.toml"], "can't be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_said_in_one_line_and_changes_nothing(
    sqlite_store: Database, folder: Path, words: list[str], says: str
) -> None:
    changed(sqlite_store, "add", "--model", str(folder), "there")
    before = list_models(sqlite_store, retired=True)
    with pytest.raises((ValueError, SettingError), match=re.escape(says)) as raised:
        changed(sqlite_store, *(str(folder) if word == "FOLDER" else word for word in words))
    assert "\n" not in str(raised.value)
    assert list_models(sqlite_store, retired=True) == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[models", "is no TOML"),
        ("[model.a]\n", "must have a table"),
        ("[models.a]\nmodel = 'FOLDER'\nsize = 7\n", "size can't be set for a model"),
        ("[models.a]\nmodel = 'FOLDER'\naliases = 'b'\n", "aliases must be a list"),
        ("[models.a]\nmodel = 'FOLDER'\ndefault = 1\n", "default must be true or false"),
        (
            "[models.a]\nmodel = 'FOLDER'\ndefault = true\n[models.b]\nmodel = 'FOLDER'\ndefault = true\n",
            "more than one model is the default",
        ),
    ],
)
def test_a_file_with_a_mistake_changes_nothing(
    sqlite_store: Database, folder: Path, tmp_path: Path, text: str, says: str
) -> None:
    changed(sqlite_store, "add", "--model", str(folder), "there")
    file = tmp_path / "models.toml"
    file.write_text(text.replace("FOLDER", str(folder)))
    with pytest.raises((ValueError, SettingError), match=re.escape(says)):
        changed(sqlite_store, "apply", str(file))
    assert [one.name for one in list_models(sqlite_store)] == ["there"]


def test_paths_are_stored_whole(
    sqlite_store: Database, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """API and workers may run in other folders than the command."""
    monkeypatch.chdir(folder.parent)
    (folder.parent / "adapters").mkdir()
    (added,) = changed(sqlite_store, "add", "--model", folder.name, "--adapter-folder", "adapters", "x")
    assert added["settings"] == {"model": str(folder), "adapter_folder": str(folder.parent / "adapters")}


def test_what_a_later_version_has_stored_is_read(sqlite_store: Database, folder: Path) -> None:
    changed(sqlite_store, "add", "--model", str(folder), "x")
    with sqlite_store.write() as tx:
        card = tx.scalar(select(table.c.card))
        tx.execute(update(table).values(card=card | {"pictures": 3}))
    assert [one.name for one in list_models(sqlite_store)] == ["x"]
