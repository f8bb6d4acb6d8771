"""What several tests of the client need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scoreline.running import CommandUp
from tests.services import free_port


@pytest.fixture
def job_object() -> dict[str, object]:
    """A job as the service shows it."""
    return {
        **dict.fromkeys(("started_at", "finished_at", "expires_at", "error")),
        "id": "job_1",
        "model": "tiny",
        "status": "queued",
        "priority": "normal",
        "created_at": 1.0,
        "metadata": {},
        "warnings": [],
        "progress": {"total_items": 1, "scored_items": 0},
        "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
    }


@pytest.fixture
def restarting(model_directory: Path, tmp_path: Path) -> Iterator[Callable[..., CommandUp]]:
    """Return a function that starts the service on the same data and at the same address each time."""
    port, started = str(free_port()), 0
    ups: list[CommandUp] = []

    def start(stand_in: str = "") -> CommandUp:
        nonlocal started
        started += 1
        folder = tmp_path / f"up-{started}"
        arguments = ("--data", str(tmp_path / "data"), "--port", port)
        ups.append(CommandUp(model_directory, folder, *arguments, stand_in=stand_in))
        ups[-1].wait_until_ready()
        return ups[-1]

    yield start
    for up in ups:
        up.close()
