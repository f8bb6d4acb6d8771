"""A model directory without weights, and ``scoreline up`` on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scoreline.client import Client
from scoreline.server_process import DEMONSTRATION_MODEL
from tests.api.tiny_model import make_model_directory
from tests.scoreline.running import REAL, ROOT, CommandUp, ForkedUp, Up


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and a configuration."""
    return make_model_directory(tmp_path_factory.mktemp("command-model") / "tiny")


@pytest.fixture
def start_up(model_directory: Path, tmp_path: Path) -> Iterator[Callable[..., CommandUp]]:
    """Return a function that starts ``scoreline up``. All that still run at the end of the test are killed."""
    started: list[CommandUp] = []

    def start(*arguments: str, cwd: Path = ROOT, stand_in: str = "", **variables: Any) -> CommandUp:
        folder = tmp_path / f"up-{len(started)}"
        started.append(CommandUp(model_directory, folder, *arguments, cwd=cwd, stand_in=stand_in, **variables))
        return started[-1]

    yield start
    for up in started:
        up.close()


@pytest.fixture(scope="session")
def shared_up(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedUp]:
    """A running service for tests that only use it."""
    folder = tmp_path_factory.mktemp("shared-up")
    service = ForkedUp(model_directory, folder, SCORELINE_WEBHOOK_ALLOWED_NETWORKS="127.0.0.0/8")
    yield service
    service.close()


@pytest.fixture(scope="session")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A running service with the demonstration model and the real worker. Tests that use it are slow."""
    up = CommandUp(
        DEMONSTRATION_MODEL,
        tmp_path_factory.mktemp("demonstration-up"),
        command=REAL,
        SCORELINE_MODEL_NAME="demonstration",
    )
    up.wait_until_ready(180.0)  # It compiles.
    yield up
    up.close()


@pytest.fixture
def client(shared_up: Up) -> Iterator[Client]:
    """A client of it."""
    with Client(shared_up.url) as client:
        yield client
