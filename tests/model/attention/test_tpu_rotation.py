"""The kernel that norms and rotates queries and keys, interpreted on a CPU, agrees with the plain rotation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.experimental.pallas import tpu as pltpu

from model.attention.tpu import rotation
from model.attention.tpu.rotation import TPURotation
from model.rotation import HeadNorm, RotaryEmbedding
from tests.model.attention.attention_steps import races_found

D, HEADS = 16, 3
INTERPRETED = pltpu.InterpretParams(detect_races=True)


def rotated(rows: int, norm: bool) -> tuple[Array, Array]:
    """Return what the kernel computes, and what is expected: bf16 [rows, HEADS, D]."""
    random = np.random.RandomState(rows)
    angles = random.uniform(-4, 4, (rows, D // 2)).astype(np.float32)
    rotary = RotaryEmbedding(jnp.cos(angles), jnp.sin(angles))
    projected = jnp.asarray(random.standard_normal((rows, HEADS * D)) * 3, jnp.float32)
    weight = HeadNorm(jnp.asarray(random.uniform(0.5, 2, D), jnp.bfloat16), 1e-6) if norm else None

    def by_kernel(projected: Array) -> Array:
        return TPURotation.of(rotary, interpret=INTERPRETED).heads(projected, D, weight, jnp.bfloat16)

    return jax.jit(by_kernel)(projected), rotary.heads(projected, D, weight, jnp.bfloat16)


@pytest.mark.parametrize("norm", [True, False])
def test_heads_are_normed_and_rotated_as_without_the_kernel_and_nothing_races(norm: bool) -> None:
    found, expected = rotated(2 * rotation.ROWS, norm)
    assert not races_found()
    # Both round to bf16, whose neighbours differ by 2^-8 of their size.
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(expected, np.float32), rtol=2**-7, atol=1e-3)


def test_rows_that_fill_no_whole_step_of_the_grid_are_rotated() -> None:
    found, expected = rotated(rotation.ROWS + 40, norm=True)
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(expected, np.float32), rtol=2**-7, atol=1e-3)
