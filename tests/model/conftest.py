"""Small checkpoints with spread logits, and engines over them: made once, since programs take a second to compile."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path

import jax
import pytest

from model.engine import Engine
from tests.model import engines
from tests.model.checkpoints import EVERY, tensors, write
from tests.model.engines import DType
from tests.model.references import SEED

MAPS = Path("/proc/self/maps")
MOST_MAPS = 25_000
"""Of the 65,530 that Linux grants a process by default."""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a checkpoint by its name in EVERY."""

    @cache
    def directory(name: str) -> Path:
        config = EVERY[name]
        return write(tmp_path_factory.mktemp("checkpoints") / name.replace(" ", "_"), config, tensors(config, SEED))

    return directory


@pytest.fixture(autouse=True)
def memory_maps_last() -> Iterator[None]:
    """Compiled programs take hundreds of memory maps each, and the compiler crashes when a process has no more."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        gc.collect()
        jax.clear_caches()


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[[str], Path]) -> Callable[[str, DType], Engine]:
    """The engine over such a checkpoint."""

    @lru_cache(maxsize=4)
    def loaded(name: str, dtype: DType) -> Engine:
        return engines.load(checkpoint(name), dtype)

    return loaded
