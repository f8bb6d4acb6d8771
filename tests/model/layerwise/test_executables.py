"""The table of compiled programs, used by several threads."""

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

from model import executable_table
from model.architecture.weights import params
from model.buckets import Buckets
from model.executable_table import ExecutableTable
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.output_mlp import OutputMLPKey
from model.layerwise.prefix_attention import PrefixAttentionKey
from model.layerwise.store import StoreKey
from model.layerwise.warm_up import Key
from model.programs.label_head import HeadKey
from scoring.layout import Head
from tests.model.checkpoints import CONFIGS, random_decoder
from tests.model.engines import PLATFORM, unchecked

SMALL = HeadKey(Head.LOGITS, 2, 8)
OTHER = HeadKey(Head.LOGITS, 4, 8)
CONFIG = CONFIGS["tied"]
BUCKETS = Buckets.of(64)
BLOCKS = 3
DEADLINE = 60.0
pytestmark = pytest.mark.compiles


def decoder(dtype: str = "float32") -> LayerwiseDecoder:
    return LayerwiseDecoder(random_decoder(CONFIG, dtype), PLATFORM, BUCKETS, longest=2)


def table(dtype: str = "float32") -> ExecutableTable[LayerwiseDecoder]:
    return ExecutableTable(decoder(dtype), PLATFORM, unchecked)


class WatchedExecutables(ExecutableTable[LayerwiseDecoder]):
    """Counts what is compiled, and can hold or fail a compilation."""

    def __init__(self) -> None:
        super().__init__(decoder(), PLATFORM, unchecked)
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


@pytest.mark.slow
def test_a_program_is_compiled_once_however_many_ask_for_it() -> None:
    watched = WatchedExecutables()
    watched.held[SMALL] = Event()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(watched.__getitem__, SMALL) for _ in range(8)]
        assert watched.begun.wait(DEADLINE)
        watched.held[SMALL].set()
        found = {id(future.result(DEADLINE)) for future in asked}
    assert len(found) == 1
    assert watched.started == [SMALL]


def test_a_thread_that_needs_another_program_does_not_wait() -> None:
    watched = WatchedExecutables()
    watched.held[SMALL] = Event()
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(watched.__getitem__, SMALL)
        assert watched.begun.wait(DEADLINE)
        pool.submit(watched.__getitem__, OTHER).result(DEADLINE)
        assert not slow.done()
        watched.held[SMALL].set()
        slow.result(DEADLINE)


def test_a_failed_compilation_raises_and_the_next_call_compiles_again() -> None:
    watched = WatchedExecutables()
    watched.fail = True
    with pytest.raises(MemoryError, match="no room"):
        watched[SMALL]
    watched.fail = False
    watched[SMALL]
    assert watched.started == [SMALL, SMALL]


def test_weights_are_arguments_and_not_constants_of_a_program() -> None:
    text = table()[OutputMLPKey(64)].as_text()
    assert text is not None
    kernel = f"[{CONFIG.width},{CONFIG.mlp_width}]"
    assert any(kernel in line and "parameter(" in line for line in text.splitlines())
    assert not any(kernel in line and "constant(" in line for line in text.splitlines())


@pytest.mark.slow
def test_a_bfloat16_pool_is_never_copied_to_float32() -> None:
    text = table("bfloat16")[PrefixAttentionKey(64, BLOCKS)].as_text()
    assert text is not None
    pool = f"[{BLOCKS},{CONFIG.kv_heads},"
    assert f"u16{pool}" in text
    assert f"f32{pool}" not in text
    assert f"bf16{pool}" not in text


def test_layers_are_views_of_the_memory_that_was_loaded() -> None:
    loaded = random_decoder(CONFIG, "bfloat16")
    stack = params(loaded)["model", "layers", "mlp", "up_proj", "weight"][...]
    kernel_bytes = 2 * CONFIG.width * CONFIG.mlp_width
    taken_apart = LayerwiseDecoder(loaded, PLATFORM, BUCKETS, longest=2)
    places = {leaf.unsafe_buffer_pointer() for layer in taken_apart.layers for leaf in layer}
    assert {stack.unsafe_buffer_pointer() + n * kernel_bytes for n in range(CONFIG.layers)} <= places


@pytest.mark.parametrize("begin", [0, 24])
def test_a_piece_is_stored_behind_the_beginning_of_a_block_in_the_memory_of_the_pool_that_was_passed(
    begin: int,
) -> None:
    of, compiled = decoder("bfloat16"), table("bfloat16")
    pool = tuple(jnp.ones(part.shape, part.dtype) for part in of.pool(BLOCKS))
    places = [part.unsafe_buffer_pointer() for part in pool]
    random = np.random.RandomState(0)
    keys, values = (
        jnp.asarray(random.standard_normal((BUCKETS.step_tokens, CONFIG.kv_heads, CONFIG.head_dim)), jnp.bfloat16)
        for _ in range(2)
    )
    stored = compiled[StoreKey(BLOCKS)](*pool, keys, values, np.array([1, 2, begin], np.int32))
    assert [part.unsafe_buffer_pointer() for part in stored] == places
    stored_keys, stored_values = map(np.asarray, stored)
    own_keys, own_values = (np.asarray(part).view(np.uint16)[: BUCKETS.step_tokens - begin] for part in (keys, values))
    np.testing.assert_array_equal(stored_keys[1, :, :, begin:], own_keys.transpose(1, 2, 0))
    np.testing.assert_array_equal(stored_values[1, :, begin:], own_values.transpose(1, 0, 2))
    assert (stored_keys[1, :, :, :begin] == 1).all()
    assert (stored_values[1, :, :begin] == 1).all()
    for untouched in (0, 2):
        assert (stored_keys[untouched] == 1).all()
        assert (stored_values[untouched] == 1).all()


def test_a_padding_label_changes_nothing() -> None:
    of, compiled = decoder(), table()
    hidden = np.random.RandomState(0).standard_normal((2, CONFIG.width)).astype(np.float32)
    one, other = (np.array([4, 9, *[pad] * 6], np.int32) for pad in (0, 50))
    first, second = (np.asarray(compiled[SMALL](*of.head, hidden, labels)[0]) for labels in (one, other))
    np.testing.assert_array_equal(first[:, :2], second[:, :2])


def test_the_table_keeps_the_programs_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable_table, "MAX_PROGRAMS", 2)
    watched = WatchedExecutables()
    third = HeadKey(Head.LOGITS, 6, 8)
    for key in (SMALL, OTHER, SMALL, third, SMALL, OTHER):
        watched[key]
    assert watched.started == [SMALL, OTHER, third, OTHER]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory maps are counted where Linux shows them")
def test_an_evicted_program_gives_its_memory_maps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def maps() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    monkeypatch.setattr(executable_table, "MAX_PROGRAMS", 3)
    compiled = table()
    for tokens in range(1, 4):
        compiled[OutputMLPKey(tokens)]
    before = maps()
    for tokens in range(4, 12):
        compiled[OutputMLPKey(tokens)]
    gc.collect()
    assert maps() - before < 40, "eight programs of 24 each have come and gone"
