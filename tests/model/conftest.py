"""Small checkpoints with spread logits, and engines over them: made once, since programs take a second to compile."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from model.engine import Engine
from tests.model import engines
from tests.model.checkpoints import EVERY, tensors, write
from tests.model.engines import DType
from tests.model.references import SEED


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a checkpoint by its name in EVERY."""

    @cache
    def directory(name: str) -> Path:
        config = EVERY[name]
        return write(tmp_path_factory.mktemp("checkpoints") / name.replace(" ", "_"), config, tensors(config, SEED))

    return directory


@pytest.fixture(scope="session")
def engine(checkpoint: Callable[[str], Path]) -> Callable[[str, DType], Engine]:
    """The engine over such a checkpoint."""

    @cache
    def loaded(name: str, dtype: DType) -> Engine:
        return engines.load(checkpoint(name), dtype)

    return loaded
