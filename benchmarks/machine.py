"""The speed of this machine, so that figures of different days and machines can be compared relative to it."""

from __future__ import annotations

import statistics
import time

import jax
import jax.numpy as jnp

ROWS, INNER, COLUMNS = 2048, 1024, 3072


def bf16_gflops(repeats: int = 15) -> float:
    """Return the median GFLOP/s of bf16 products [2048, 1024] x [1024, 3072] that are summed in float32."""
    left = jax.random.normal(jax.random.key(0), (ROWS, INNER), jnp.bfloat16)
    right = jax.random.normal(jax.random.key(1), (INNER, COLUMNS), jnp.bfloat16)
    product = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32)).lower(left, right).compile()
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        product(left, right).block_until_ready()
        seconds.append(time.perf_counter() - started)
    return 2 * ROWS * INNER * COLUMNS / statistics.median(seconds[1:]) / 1e9
