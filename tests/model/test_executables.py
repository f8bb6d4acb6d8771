"""The table of compiled programs under several callers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import jax
import numpy as np
import pytest
from flax import nnx

from model.buckets import BodyKey, Buckets, HeadKey
from model.decoder import Decoder
from model.executables import Executables
from scoring.layout import Head
from tests.model.checkpoints import CONFIGS

SMALL = HeadKey(Head.LOGITS, 2, 8)
OTHER = HeadKey(Head.LOGITS, 4, 8)
DEADLINE = 60.0


class WatchedExecutables(Executables):
    """Counts what is compiled, and can hold or fail a compilation."""

    def __init__(self) -> None:
        super().__init__(Decoder(CONFIGS["tied"], rngs=nnx.Rngs(0)))
        self.started: list[BodyKey | HeadKey] = []
        self.held: dict[BodyKey | HeadKey, Event] = {}
        self.begun = Event()
        self.fail = False

    def _compile(self, key: BodyKey | HeadKey) -> jax.stages.Compiled:
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
    table = Executables(Decoder(CONFIGS["tied"], rngs=nnx.Rngs(0)))
    text = table.compiled(Buckets.of(1024, 64).body(20)).as_text()
    assert text is not None
    config = CONFIGS["tied"]
    stack = f"[{config.layers},{config.width},{config.mlp_width}]"
    assert any(stack in line and "parameter(" in line for line in text.splitlines())
    assert not any(stack in line and "constant(" in line for line in text.splitlines())


def test_a_bfloat16_stack_is_never_copied_to_float32() -> None:
    config = CONFIGS["tied"]
    table = Executables(Decoder(config, dtype="bfloat16", rngs=nnx.Rngs(0)))
    text = table.compiled(BodyKey(2, 32)).as_text()
    assert text is not None
    assert f"f32[{config.layers},{config.width},{config.mlp_width}]" not in text
    assert f"u16[{config.layers},{config.width},{config.mlp_width}]" in text


def test_a_padding_label_changes_nothing() -> None:
    table = Executables(Decoder(CONFIGS["tied"], rngs=nnx.Rngs(0)))
    hidden = np.random.RandomState(0).standard_normal((2, CONFIGS["tied"].width)).astype(np.float32)
    one, other = (np.array([4, 9, *[pad] * 6], np.int32) for pad in (0, 50))
    first, second = (np.asarray(table.head(SMALL, hidden, labels)[0]) for labels in (one, other))
    np.testing.assert_array_equal(first[:, :2], second[:, :2])
