"""Fixtures: a server whose page a browser opens."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.api.page.browser.watching import Tab, tab
from tests.api.serving import RunningApi, StandInWorker, running_api
from tests.api.tiny_model import TinyModel

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def served(
    model: TinyModel, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningApi, StandInWorker]]:
    """A server that needs no key, with a worker, shared by the tests of a module."""
    folder = tmp_path_factory.mktemp("served")
    path = folder / "scoreline.db"
    shutil.copy(sqlite_template, path)
    with running_api(model.directory, f"sqlite:///{path}", folder) as (api, worker):
        assert worker is not None
        yield api, worker


@pytest.fixture
def shown(chromium: Browser, served: tuple[RunningApi, StandInWorker]) -> Iterator[Tab]:
    """A tab with the page of that server."""
    with tab(chromium, served[0].url) as opened:
        yield opened
