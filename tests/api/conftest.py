"""Fixtures: a running API with a tiny model, shared by a test module or fresh for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.requests.uploads import lines, upload, upload_reader
from tests import databases
from tests.api.serving import RunningApi, StandInWorker, running_api
from tests.api.tiny_model import TinyModel, make_model_directory

store_url = databases.store_url


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """The tiny model."""
    return TinyModel(make_model_directory(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def api(model: TinyModel, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    """A server with a worker on SQLite, shared by the tests of a module."""
    folder = tmp_path_factory.mktemp("api")
    path = folder / "scoreline.db"
    shutil.copy(sqlite_template, path)
    with running_api(model.directory, f"sqlite:///{path}", folder) as (api, _):
        yield api


@pytest.fixture
def fresh(model: TinyModel, store_url: str, tmp_path: Path) -> Iterator[tuple[RunningApi, StandInWorker]]:
    """A new server with a worker, on the database of ``store_url``."""
    with running_api(model.directory, store_url, tmp_path) as (api, worker):
        assert worker is not None
        yield api, worker


@pytest.fixture
def on_sqlite(model: TinyModel, sqlite_url: str, tmp_path: Path) -> Iterator[tuple[RunningApi, StandInWorker]]:
    """A new server with a worker on SQLite, for tests of what no database can change."""
    with running_api(model.directory, sqlite_url, tmp_path) as (api, worker):
        assert worker is not None
        yield api, worker


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits of steps and batches, so that a few items reach them."""
    monkeypatch.setattr(lines, "STEP_BYTES", 7)
    monkeypatch.setattr(upload_reader, "BATCH_ITEMS", 4)
    monkeypatch.setattr(upload, "STAGE_CHUNKS", 2)
