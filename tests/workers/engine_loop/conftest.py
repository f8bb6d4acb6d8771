"""A checkpoint for processes of scoring workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.architecture.weights import save
from tests.api.tiny_model import make_model_directory
from tests.model.checkpoints import random_decoder
from tests.workers.engine_loop.processes.real_workers import CONFIG


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a tokenizer."""
    directory = make_model_directory(tmp_path_factory.mktemp("checkpoint") / "tiny")
    save(random_decoder(CONFIG), directory)
    return directory
