"""The kernels that project rows, interpreted on a CPU, agree with plain products, norms, rotations and activations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.experimental.pallas import tpu as pltpu

from model.attention.tpu.gate import gated
from model.attention.tpu.projection import ROWS
from model.attention.tpu.rotation import TPURotation
from model.layers.linear import ACTIVATIONS, OfStack, project
from model.layers.rotation import HeadNorm, RotaryEmbedding
from tests.model.attention.attention_steps import races_found

D, WIDTH = 16, 24
INTERPRETED = pltpu.InterpretParams(detect_races=True)
STACK = jnp.asarray(np.random.RandomState(9).standard_normal((3, WIDTH, 4 * D)) * 0.6, jnp.bfloat16)


def norm_of(random: np.random.RandomState) -> HeadNorm:
    return HeadNorm(jnp.asarray(random.uniform(0.5, 2, D), jnp.bfloat16), 1e-6)


def rotary(rows: int) -> RotaryEmbedding:
    angles = np.random.RandomState(rows).uniform(-4, 4, (rows, D // 2)).astype(np.float32)
    return RotaryEmbedding(jnp.cos(angles), jnp.sin(angles))


def assert_close(found: Any, expected: Any) -> None:
    # Both round to bf16, whose neighbours differ by 2^-8 of their size.
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(expected, np.float32), rtol=2**-6, atol=4e-3)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("rows", "heads"), [(2 * ROWS, 4), (ROWS + 40, 3)])
def test_heads_are_normed_and_rotated_as_without_the_kernel_and_nothing_races(
    norm: bool, rows: int, heads: int
) -> None:
    """Two whole tiles, and one with a rest, which fills no whole step of the grid."""
    random = np.random.RandomState(rows)
    projected = jnp.asarray(random.standard_normal((rows, heads * D)) * 3, jnp.float32)
    of_heads = norm_of(random) if norm else None

    def by_kernel(projected: Array) -> Array:
        return TPURotation.of(rotary(rows), interpret=INTERPRETED).heads(projected, D, of_heads, jnp.bfloat16)

    found = jax.jit(by_kernel)(projected)
    assert not races_found()
    assert_close(found, rotary(rows).heads(projected, D, of_heads, jnp.bfloat16))


@pytest.mark.parametrize("norm", [True, False])
def test_rows_are_projected_by_a_layer_of_a_stack_and_then_rotated(norm: bool) -> None:
    rows = 4 * ROWS
    random = np.random.RandomState(5)
    entering = jnp.asarray(random.standard_normal((rows, WIDTH)), jnp.bfloat16)
    of_heads = norm_of(random) if norm else None

    def by_kernel(entering: Array, number: Array) -> Array:
        rotation = TPURotation.of(rotary(rows), interpret=INTERPRETED)
        return rotation.projected(entering, OfStack(STACK, number), D, of_heads)

    found = jax.jit(by_kernel)(entering, jnp.int32(2))
    assert not races_found()
    assert_close(found, rotary(rows).projected(entering, STACK[2], D, of_heads))


def test_a_row_is_projected_to_the_same_bits_beside_other_rows() -> None:
    random = np.random.RandomState(6)
    entering = jnp.asarray(random.standard_normal((2 * ROWS, WIDTH)), jnp.bfloat16)
    order = random.permutation(2 * ROWS)
    cos, sin = rotary(2 * ROWS)

    def by_kernel(entering: Array, cos: Array, sin: Array) -> Array:
        rotation = TPURotation.of(RotaryEmbedding(cos, sin), interpret=INTERPRETED)
        return rotation.projected(entering, STACK[0], D, norm_of(np.random.RandomState(7)))

    found = jax.jit(by_kernel)(entering, cos, sin)
    again = jax.jit(by_kernel)(entering[order].at[: ROWS // 2].multiply(100), cos[order], sin[order])
    assert np.array_equal(again[ROWS // 2 :], found[order][ROWS // 2 :])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gate_and_up_projection_and_activation_are_one_kernel(activation: str) -> None:
    entering = jnp.asarray(np.random.RandomState(8).standard_normal((ROWS + 8, WIDTH)), jnp.bfloat16)

    def by_kernel(entering: Array) -> Array:
        gate, up = OfStack(STACK, jnp.int32(1)), OfStack(STACK[::-1], jnp.int32(1))
        return gated(entering, gate, up, activation, interpret=INTERPRETED)

    found = jax.jit(by_kernel)(entering)
    assert not races_found()
    assert_close(found, ACTIVATIONS[activation](project(entering, STACK[1])) * project(entering, STACK[::-1][1]))
