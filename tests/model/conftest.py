"""Small checkpoints with spread logits, and engines over them: made once, since programs take a second to compile."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jax
import pytest

from model.checks.known_answer import KnownAnswers
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


_COMPILED: dict[tuple[str, ...], jax.stages.Compiled] = {}
"""Executables by what was compiled and how: many engines of a test run are made of the same programs."""


@pytest.fixture(autouse=True)
def compiled_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile what is the same to the letter once in a run, but for tests that are about compiling."""
    compile_program = jax.stages.Lowered.compile

    def compiled(self: jax.stages.Lowered, compiler_options: Any = None) -> jax.stages.Compiled:
        known = (self.as_text(), str(self.in_avals), str(compiler_options))
        if known not in _COMPILED:
            _COMPILED[known] = compile_program(self, compiler_options)
        return _COMPILED[known]

    if request.node.get_closest_marker("compiles") is None:
        monkeypatch.setattr(jax.stages.Lowered, "compile", compiled)
    yield
    # Programs take dozens of memory maps each, and the compiler crashes when a process has no more.
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        _COMPILED.clear()
        gc.collect()
        jax.clear_caches()


@pytest.fixture
def unchecked_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines use programs that compute something else, to see what comes of it."""
    monkeypatch.setattr(KnownAnswers, "check", lambda self, key, executable: None)


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[[str], Path]) -> Callable[[str, DType], Engine]:
    """The engine over such a checkpoint."""

    @lru_cache(maxsize=4)
    def loaded(name: str, dtype: DType) -> Engine:
        return engines.load(checkpoint(name), dtype)

    return loaded
