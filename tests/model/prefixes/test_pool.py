"""The size of the pool of prefix blocks, and the memory that it takes."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.prefixes.pool import HOST_BUDGET, PROGRAM_BYTES, ContextTooLongError, PoolShape, untouched_zeros
from tests.model.checkpoints import CONFIGS

CONFIG = CONFIGS["untied"]
BLOCK = 256
BLOCK_BYTES = 2 * CONFIG.layers * CONFIG.kv_heads * CONFIG.head_dim * 4 * BLOCK


def shape(context: int, budget: int | None = None, memory: int | None = None) -> PoolShape:
    return PoolShape.of(CONFIG, context, 4, BLOCK, budget, memory)


def test_in_the_hosts_memory_the_budget_is_what_the_settings_say_and_the_pool_holds_a_context() -> None:
    assert shape(10 * BLOCK, budget=3 * BLOCK_BYTES) == PoolShape(blocks=10, budget=3, longest=10)
    assert shape(2 * BLOCK + 1, budget=7 * BLOCK_BYTES) == PoolShape(blocks=7, budget=7, longest=3)
    assert shape(BLOCK, budget=1) == PoolShape(blocks=1, budget=1, longest=1)


def test_a_small_model_has_no_use_for_a_large_budget() -> None:
    assert shape(BLOCK).blocks == 16
    assert HOST_BUDGET > 16 * BLOCK_BYTES


def test_a_devices_pool_takes_what_programs_leave_free() -> None:
    memory = PROGRAM_BYTES + 9 * BLOCK_BYTES + 1
    assert shape(4 * BLOCK, memory=memory) == PoolShape(blocks=9, budget=9, longest=4)
    assert shape(4 * BLOCK, budget=2 * BLOCK_BYTES, memory=memory) == PoolShape(blocks=9, budget=2, longest=4)


def test_heads_that_are_filled_up_take_their_room_in_the_pool() -> None:
    memory = PROGRAM_BYTES + 9 * BLOCK_BYTES
    assert PoolShape.of(CONFIG, BLOCK, 4, BLOCK, None, memory, head_dim=3 * CONFIG.head_dim).blocks == 3


def test_a_context_that_does_not_fit_into_a_device_is_refused_with_what_would_fit() -> None:
    with pytest.raises(ContextTooLongError, match=r"of 768 tokens .* the context is 769: set SCORELINE_CONTEXT_LENGTH"):
        shape(3 * BLOCK + 1, memory=PROGRAM_BYTES + 3 * BLOCK_BYTES)
    assert shape(3 * BLOCK, memory=PROGRAM_BYTES + 3 * BLOCK_BYTES).blocks == 3
    with pytest.raises(ContextTooLongError, match="of 0 tokens"):
        shape(BLOCK, memory=PROGRAM_BYTES - 1)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux")
def test_zeros_that_nobody_has_written_to_take_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    wanted = jax.ShapeDtypeStruct((64, 2**20), jnp.uint8)  # type: ignore[no-untyped-call]
    before = resident()
    found = [untouched_zeros(wanted, on_host=True) for _ in range(4)]
    assert resident() - before < 64 * 2**20, "a quarter of them at most"
    write = jax.jit(lambda pool: pool.at[7].set(jnp.uint8(3)), donate_argnums=0)
    written = np.asarray(write(found[0]))
    assert (written[7] == 3).all()
    assert not written[8].any()
    assert not np.asarray(found[1]).any()
