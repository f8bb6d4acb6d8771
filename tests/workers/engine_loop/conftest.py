"""A checkpoint for processes of scoring workers, and a rota of made-up models."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from demonstration.saving import save
from tests.api.tiny_model import make_model_directory
from tests.model.checkpoints import random_decoder
from tests.workers.conftest import Store
from tests.workers.engine_loop.made_up_models import Scene
from tests.workers.engine_loop.processes.real_workers import CONFIG


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a tokenizer."""
    directory = make_model_directory(tmp_path_factory.mktemp("checkpoint") / "tiny")
    save(random_decoder(CONFIG), directory)
    return directory


@pytest.fixture
def scene(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    # All that was imported and collected stays frozen: to go through it takes a second each time.
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    scene = Scene(store)
    yield scene
    scene.stop()
