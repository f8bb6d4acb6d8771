"""The table of compiled programs under several callers."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from model import executables
from model.buckets import PREFILL_TOKENS, Buckets, HeadKey, Key, RowsKey, StoreKey
from model.decoder import Decoder
from model.executables import Executables, PoolShape
from scoring.layout import Head
from tests.model.checkpoints import CONFIGS

SMALL = HeadKey(Head.LOGITS, 2, 8)
OTHER = HeadKey(Head.LOGITS, 4, 8)
POOL = PoolShape(blocks=3, longest=2)
DEADLINE = 60.0


class WatchedExecutables(Executables):
    """Counts what is compiled, and can hold or fail a compilation."""

    def __init__(self) -> None:
        super().__init__(Decoder(CONFIGS["tied"], rngs=nnx.Rngs(0)), POOL)
        self.started: list[Key] = []
        self.held: dict[Key, Event] = {}
        self.begun = Event()
        self.fail = False

    def _compile(self, key: Key) -> jax.stages.Compiled:
        self.started.append(key)
        if key in self.held:
            self.begun.set()
            assert self.held[key].wait(DEADLINE)
        if self.fail:
            raise MemoryError("no room to compile")
        return super()._compile(key)


def test_a_program_is_compiled_once_however_many_ask_for_it() -> None:
    table = WatchedExecutables()
    table.held[SMALL] = Event()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(table.compiled, SMALL) for _ in range(8)]
        assert table.begun.wait(DEADLINE)
        table.held[SMALL].set()
        found = {id(future.result(DEADLINE)) for future in asked}
    assert len(found) == 1
    assert table.started == [SMALL]


def test_who_needs_another_program_does_not_wait() -> None:
    table = WatchedExecutables()
    table.held[SMALL] = Event()
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(table.compiled, SMALL)
        assert table.begun.wait(DEADLINE)
        pool.submit(table.compiled, OTHER).result(DEADLINE)
        assert not slow.done()
        table.held[SMALL].set()
        slow.result(DEADLINE)


def test_a_failed_compilation_is_told_and_tried_again() -> None:
    table = WatchedExecutables()
    table.fail = True
    with pytest.raises(MemoryError, match="no room"):
        table.compiled(SMALL)
    table.fail = False
    table.compiled(SMALL)
    assert table.started == [SMALL, SMALL]


def test_weights_are_arguments_and_not_constants_of_a_program() -> None:
    table = Executables(Decoder(CONFIGS["tied"], rngs=nnx.Rngs(0)), POOL)
    text = table.compiled(Buckets.of(1024, 64).rows(20)).as_text()
    assert text is not None
    config = CONFIGS["tied"]
    stack = f"[{config.layers},{config.width},{config.mlp_width}]"
    assert any(stack in line and "parameter(" in line for line in text.splitlines())
    assert not any(stack in line and "constant(" in line for line in text.splitlines())


def test_a_bfloat16_stack_is_never_copied_to_float32() -> None:
    config = CONFIGS["tied"]
    table = Executables(Decoder(config, dtype="bfloat16", rngs=nnx.Rngs(0)), POOL)
    text = table.compiled(RowsKey(2, 32)).as_text()
    assert text is not None
    assert f"f32[{config.layers},{config.width},{config.mlp_width}]" not in text
    assert f"u16[{config.layers},{config.width},{config.mlp_width}]" in text
    outer = f"{POOL.blocks},{config.layers},{config.kv_heads}"
    assert f"f32[{outer}" not in text
    assert f"u16[{outer}" in text


@pytest.mark.parametrize("tokens", PREFILL_TOKENS)
def test_a_block_is_stored_in_the_memory_of_the_pool_that_was_passed(tokens: int) -> None:
    config = CONFIGS["tied"]
    table = Executables(Decoder(config, dtype="bfloat16", rngs=nnx.Rngs(0)), POOL)
    pool = tuple(jnp.ones_like(part) for part in table.empty_pool())
    places = [part.unsafe_buffer_pointer() for part in pool]
    random = np.random.RandomState(0)
    outer = (config.layers, config.kv_heads)
    keys, values = (
        random.randint(1, 2**16, shape).astype(np.uint16)
        for shape in ((*outer, config.head_dim, tokens), (*outer, tokens, config.head_dim))
    )
    stored = table.store(StoreKey(tokens), *pool, keys, values, np.int32(1))
    assert [part.unsafe_buffer_pointer() for part in stored] == places
    stored_keys, stored_values = map(np.asarray, stored)
    np.testing.assert_array_equal(stored_keys[1, ..., :tokens], keys)
    np.testing.assert_array_equal(stored_values[1, :, :, :tokens], values)
    assert not stored_keys[1, ..., tokens:].any(), "nothing of an earlier prefix is left behind"
    assert not stored_values[1, :, :, tokens:].any()
    for untouched in (0, 2):
        assert (stored_keys[untouched] == 1).all()
        assert (stored_values[untouched] == 1).all()


def test_a_padding_label_changes_nothing() -> None:
    table = Executables(Decoder(CONFIGS["tied"], rngs=nnx.Rngs(0)), POOL)
    hidden = np.random.RandomState(0).standard_normal((2, CONFIGS["tied"].width)).astype(np.float32)
    one, other = (np.array([4, 9, *[pad] * 6], np.int32) for pad in (0, 50))
    first, second = (np.asarray(table.head(SMALL, hidden, labels)[0]) for labels in (one, other))
    np.testing.assert_array_equal(first[:, :2], second[:, :2])


def test_the_table_keeps_the_programs_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executables, "MOST_PROGRAMS", 2)
    table = WatchedExecutables()
    third = HeadKey(Head.LOGITS, 6, 8)
    for key in (SMALL, OTHER, SMALL, third, SMALL, OTHER):
        table.compiled(key)
    assert table.started == [SMALL, OTHER, third, OTHER]


@pytest.mark.skipif(sys.platform != "linux", reason="memory maps are counted where Linux shows them")
def test_an_evicted_program_gives_its_memory_maps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def maps() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    monkeypatch.setattr(executables, "MOST_PROGRAMS", 2)
    table = Executables(Decoder(CONFIGS["tied"], rngs=nnx.Rngs(0)), POOL)
    lengths = (4, 8, 12, 16, 20, 24)
    for length in lengths[:3]:
        table.compiled(RowsKey(2, length))
    before = maps()
    for length in lengths[3:]:
        table.compiled(RowsKey(2, length))
    gc.collect()
    assert maps() - before < 300, "less than one program's"
