"""The speed of this machine, so that figures of different days and machines can be compared relative to it."""

from __future__ import annotations

import statistics
import time

import jax
import jax.numpy as jnp

ROWS, INNER, COLUMNS = 2048, 1024, 3072


def bf16_gflops(repeats: int = 15, sizes: tuple[int, int, int] = (ROWS, INNER, COLUMNS), together: int = 1) -> float:
    """Return the median GFLOP/s of bf16 products that are summed in float32, by default [2048, 1024] x [1024, 3072].

    together: how many are called before one is waited for. On an accelerator, a call alone takes longer to start.
    """
    rows, inner, columns = sizes
    left = jax.random.normal(jax.random.key(0), (rows, inner), jnp.bfloat16)
    right = jax.random.normal(jax.random.key(1), (inner, columns), jnp.bfloat16)
    product = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32)).lower(left, right).compile()
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        for _ in range(together):
            found = product(left, right)
        found.block_until_ready()
        seconds.append((time.perf_counter() - started) / together)
    return 2 * rows * inner * columns / statistics.median(seconds[1:]) / 1e9
