"""The kernels that project rows, interpreted on a CPU, agree with plain products, norms, rotations and activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.experimental.pallas import tpu as pltpu

from model.layers.linear import ACTIVATIONS, OfStack, RMSNorm, project, rms_norm
from model.layers.rotation import RotaryEmbedding
from model.layers.tpu.gate import gated
from model.layers.tpu.projection import ROWS, tiles_of_part
from model.layers.tpu.rotation import TPURotation
from tests.model.attention.attention_steps import quickly, races_found

D, WIDTH = 16, 24
INTERPRETED = pltpu.InterpretParams(detect_races=True)
QUERY_HEADS, KEY_HEADS = 6, 4
STACK = jnp.asarray(np.random.RandomState(9).standard_normal((3, WIDTH, 768)) * 0.6, jnp.bfloat16)


GATE, UP = STACK[:, :, :384], STACK[:, :, 384:]  # 384 columns are projected in three turns


def norm_of(random: np.random.RandomState, size: int = D) -> RMSNorm:
    return RMSNorm(jnp.asarray(random.uniform(0.5, 2, size), jnp.bfloat16), 1e-6)


def rotary(rows: int) -> RotaryEmbedding:
    angles = np.random.RandomState(rows).uniform(-4, 4, (rows, D // 2)).astype(np.float32)
    return RotaryEmbedding(jnp.asarray(np.cos(angles)), jnp.asarray(np.sin(angles)))


def assert_close(found: Any, expected: Any) -> None:
    # Both round to bf16, whose neighbours differ by 2^-8 of their size.
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(expected, np.float32), rtol=2**-6, atol=4e-3)


@pytest.mark.parametrize(("rows", "heads", "norm"), [(2 * ROWS, 4, False), (ROWS + 40, 3, True)])
def test_heads_are_normed_and_rotated_as_without_the_kernel_and_nothing_races(
    rows: int, heads: int, norm: bool
) -> None:
    """Two whole tiles, and one with a rest, which fills no whole step of the grid."""
    random = np.random.RandomState(rows)
    projected = (random.standard_normal((rows, heads * D)) * 3).astype(np.float32)
    of_heads = norm_of(random) if norm else None

    def by_kernel(projected: Array) -> Array:
        return TPURotation.of(rotary(rows), interpret=INTERPRETED).heads(projected, D, of_heads, jnp.bfloat16)

    found = quickly(by_kernel)(projected)
    assert not races_found(found)
    expected = quickly(lambda projected: rotary(rows).heads(projected, D, of_heads, jnp.bfloat16))
    assert_close(found, expected(projected))


def stacks(number: Array) -> list[OfStack]:
    """Return the weights of queries, keys and values of a layer."""
    stops = np.cumsum([QUERY_HEADS * D, KEY_HEADS * D])
    return [OfStack(part, number) for part in jnp.split(STACK[:, :, : stops[-1] + KEY_HEADS * D], stops, axis=2)]


Projected = Callable[..., tuple[Array, Array, Array]]
"""Takes hidden states, rotary embeddings and the number of a layer. Returns queries, keys and values."""


@cache
def projections(before: bool, of_heads: bool) -> tuple[Projected, Projected]:
    """Return the projections of a layer of a stack by the kernel, and without it.

    before: whether they have the norm before them; of_heads: whether queries and keys are normed.
    """
    random = np.random.RandomState(5)
    norm = norm_of(random, WIDTH) if before else None
    norms = [norm_of(random), norm_of(random)] if of_heads else [None, None]

    def by_kernel(hidden: Array, rotary: RotaryEmbedding, number: Array) -> tuple[Array, Array, Array]:
        return TPURotation.of(rotary, interpret=INTERPRETED).project_qkv(hidden, norm, stacks(number), norms, D)

    def plainly(hidden: Array, rotary: RotaryEmbedding, number: Array) -> tuple[Array, Array, Array]:
        entering = hidden if norm is None else rms_norm(hidden, *norm)
        query, key, value = (project(entering, weight[...]) for weight in stacks(number))
        queries, keys = (
            rotary.heads(part, D, of_part, jnp.bfloat16) for part, of_part in zip((query, key), norms, strict=True)
        )
        return queries, keys, rotary.values(value, D, jnp.bfloat16)

    return quickly(by_kernel), quickly(plainly)


@pytest.mark.parametrize(
    ("before", "of_heads", "rows"),
    [
        (True, True, 4 * ROWS),
        (True, False, ROWS + 40),
        (False, True, ROWS + 40),
        *(pytest.param(False, False, rows, marks=pytest.mark.matrix) for rows in (4 * ROWS, ROWS + 40)),
    ],
)
def test_queries_keys_and_values_are_one_kernel_with_the_norm_before_them(
    before: bool, of_heads: bool, rows: int
) -> None:
    """Of a layer of a stack. The second number of rows fills no whole step of the grid."""
    hidden = (np.random.RandomState(5).standard_normal((rows, WIDTH)) * 3).astype(np.float32)
    by_kernel, plainly = projections(before, of_heads)
    found = by_kernel(hidden, rotary(rows), np.int32(2))
    assert not races_found(found)
    for one, expected in zip(found, plainly(hidden, rotary(rows), np.int32(2)), strict=True):
        assert_close(one, expected)


def test_a_row_is_projected_to_the_same_bits_beside_other_rows() -> None:
    random = np.random.RandomState(6)
    rows = 4 * ROWS  # as in the test before, whose program this is
    hidden = random.standard_normal((rows, WIDTH)).astype(np.float32)
    order = random.permutation(rows)
    cos, sin = map(np.asarray, rotary(rows))
    others = hidden[order]
    others[: ROWS // 2] *= 100
    by_kernel, _ = projections(before=True, of_heads=True)
    found = by_kernel(hidden, rotary(rows), np.int32(0))
    again = by_kernel(others, RotaryEmbedding(jnp.asarray(cos[order]), jnp.asarray(sin[order])), np.int32(0))
    for one, expected in zip(again, found, strict=True):
        assert np.array_equal(np.asarray(one)[ROWS // 2 :], np.asarray(expected)[order][ROWS // 2 :])


@pytest.mark.parametrize(("activation", "before"), [*zip(ACTIVATIONS, (True, False), strict=True)])
def test_norm_gate_and_up_projection_and_activation_are_one_kernel(activation: str, before: bool) -> None:
    random = np.random.RandomState(8)
    hidden = (random.standard_normal((ROWS + 8, WIDTH)) * 3).astype(np.float32)
    norm = norm_of(random, WIDTH) if before else None

    def by_kernel(hidden: Array) -> Array:
        gate, up = OfStack(GATE, jnp.int32(1)), OfStack(UP, jnp.int32(1))
        return gated(hidden, norm, gate, up, activation, interpret=INTERPRETED)

    def plainly(hidden: Array) -> Array:
        entering = hidden if norm is None else rms_norm(hidden, *norm)
        return ACTIVATIONS[activation](project(entering, GATE[1])) * project(entering, UP[1])

    found = quickly(by_kernel)(hidden)
    assert not races_found(found)
    assert_close(found, quickly(plainly)(hidden))


def test_a_part_has_the_most_tiles_of_which_few_are_computed_in_vain() -> None:
    assert [tiles_of_part(tiles, 4) for tiles in (1, 3, 4, 8, 16)] == [1, 3, 4, 4, 4]
    assert tiles_of_part(5, 4) == 3, "six are computed, not eight"
    assert tiles_of_part(7, 6) == 4
    assert tiles_of_part(8, 3) == 2
    assert tiles_of_part(8, 0) == 1
