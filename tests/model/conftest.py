"""Small checkpoints, and engines over them, made once because programs take a second to compile."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from model.checks.known_answer import ModelChecks
from model.engine import Engine
from model.executable_table import ExecutableTable
from model.layerwise.decoder import LayerwiseDecoder
from tests.model import engines
from tests.model.checkpoints import EVERY, tensors, write
from tests.model.engines import DType
from tests.model.references import SEED

MAPS = Path("/proc/self/maps")
MOST_MAPS = 25_000
"""Memory maps of the process at most, of the 65,530 that Linux grants by default."""


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
_COMPILED_BY_KEY: dict[tuple[object, ...], jax.stages.Compiled] = {}
"""The same by what the programs are made for, which saves lowering them again."""


@contextmanager
def _nothing_on_disk() -> Iterator[None]:
    """Have jax neither keep compiled programs on disk nor load them from there."""
    jax.config.update("jax_enable_compilation_cache", False)  # type: ignore[no-untyped-call]
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)  # type: ignore[no-untyped-call]
        compilation_cache.reset_cache()


@pytest.fixture(autouse=True)
def compiled_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile the same program once in a run, except for tests that are about compiling.

    A test that replaces parts of the code (it uses ``monkeypatch``) may have other programs under the same keys. So
    its programs are lowered again, and only those with the same text are shared.
    """
    compile_program = jax.stages.Lowered.compile
    compile_key = ExecutableTable._compile

    def compiled(self: jax.stages.Lowered, compiler_options: Any = None) -> jax.stages.Compiled:
        known = (self.as_text(), str(self.in_avals), str(compiler_options))
        if known not in _COMPILED:
            _COMPILED[known] = compile_program(self, compiler_options)
        return _COMPILED[known]

    def compiled_by_key(self: ExecutableTable[Any], key: Any) -> jax.stages.Compiled:
        decoder = self.decoder
        sizes = (decoder.buckets, decoder.longest) if isinstance(decoder, LayerwiseDecoder) else (decoder.shape,)
        known: tuple[object, ...] = (
            type(decoder),
            decoder.config,
            decoder.attention,
            decoder.chips,
            (decoder.embedding_as_rows, decoder.head_as_rows),
            sizes,
            key,
            tuple((argument.shape, str(argument.dtype)) for argument in key.source(decoder).arguments),
            str(self._options),
        )
        if known not in _COMPILED_BY_KEY:
            _COMPILED_BY_KEY[known] = compile_key(self, key)
        return _COMPILED_BY_KEY[known]

    if request.node.get_closest_marker("compiles") is not None:
        with _nothing_on_disk():
            yield
    else:
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(jax.stages.Lowered, "compile", compiled)
            if "monkeypatch" not in request.fixturenames:
                patches.setattr(ExecutableTable, "_compile", compiled_by_key)
            yield
    # Programs take dozens of memory maps each, and the compiler crashes when a process has no more.
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        _COMPILED.clear()
        _COMPILED_BY_KEY.clear()
        gc.collect()
        jax.clear_caches()  # type: ignore[no-untyped-call]


@pytest.fixture
def unchecked_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines use programs with wrong results."""
    monkeypatch.setattr(ModelChecks, "check", lambda self, key, executable: None)


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[[str], Path]) -> Callable[[str, DType], Engine]:
    """The engine over such a checkpoint."""

    @lru_cache(maxsize=4)
    def loaded(name: str, dtype: DType) -> Engine:
        return engines.load(checkpoint(name), dtype)

    return loaded
