"""The delta rule by chunks is the plain recurrence, token by token."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.checks.numpy_recurrence import ReferenceHeads, recur
from model.layers.delta_rule import CHUNK, DeltaInputs, delta_rule, inverse_by_halves, inverse_in_lanes, read_by_items
from tests.model.attention.attention_steps import quickly
from tests.model.programs.test_heads import compiled

KEY_HEADS, HEADS, KEY, VALUE = 2, 4, 16, 8
BATCH = (3, 2)
"""Triangles that are inverted at once."""


def heads(tokens: int, seed: int, **others: Any) -> ReferenceHeads:
    """What a recurrence takes of tokens: some heads forget at once, and others after hundreds of tokens."""
    random = np.random.RandomState(seed)

    def drawn(*shape: int) -> np.ndarray:
        return random.standard_normal((tokens, *shape)).astype(np.float32)

    def units(vectors: np.ndarray) -> np.ndarray:
        found: np.ndarray = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
        return found

    decay = -np.exp(np.linspace(-7, 1, HEADS, dtype=np.float32)) * np.abs(drawn(HEADS))
    rate = 1 / (1 + np.exp(-2 * drawn(HEADS)))
    found = ReferenceHeads(units(drawn(KEY_HEADS, KEY)), units(drawn(KEY_HEADS, KEY)), drawn(HEADS, VALUE), decay, rate)
    return found._replace(**others)


def state(seed: int) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal((HEADS, KEY, VALUE)).astype(np.float32)


def by_chunks(given: ReferenceHeads, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What one sequence reads, and the state behind it."""
    out, after = quickly(delta_rule)(DeltaInputs(*(jnp.asarray(part[None]) for part in given)), jnp.asarray(begin))
    return np.asarray(out)[0], np.asarray(after)[0]


@pytest.mark.parametrize("tokens", [8, 24, CHUNK])  # the next test has the sizes in between, and several chunks
def test_chunks_compute_the_plain_recurrence(tokens: int) -> None:
    given, begin = heads(tokens, seed=tokens), state(1)
    out, after = by_chunks(given, begin)
    expected, expected_after = recur(given, begin)
    np.testing.assert_allclose(out, expected, atol=2e-5)
    np.testing.assert_allclose(after, expected_after, atol=2e-5)


@pytest.mark.parametrize("tokens", [16, 3 * CHUNK])
def test_each_sequence_may_begin_with_a_state_of_its_own(tokens: int) -> None:
    sequences = [heads(tokens, seed) for seed in (10, 11)]
    begins = [state(seed) for seed in (12, 13)]
    inputs = DeltaInputs(*(jnp.asarray(np.stack(parts)) for parts in zip(*sequences, strict=True)))
    out, after = quickly(delta_rule)(inputs, jnp.asarray(np.stack(begins)))
    for row, (given, begin) in enumerate(zip(sequences, begins, strict=True)):
        expected, expected_after = recur(given, begin)
        np.testing.assert_allclose(out[row], expected, atol=2e-5)
        np.testing.assert_allclose(after[row], expected_after, atol=2e-5)


def read(given: ReferenceHeads, lengths: list[int], size: int, rows: int, begin: np.ndarray) -> np.ndarray:
    """What items read that stand one behind another, each padded to a size, in a program of so many rows."""
    begins = np.cumsum(lengths) - lengths
    padding = rows - len(lengths)
    places = np.minimum(np.pad(begins, (0, padding))[:, None] + np.arange(size), len(given.rate) - 1)
    present = np.arange(size) < np.pad(lengths, (0, padding))[:, None]
    gates = tuple(jnp.asarray(np.where(present[..., None], part[places], 0)) for part in (given.decay, given.rate))
    slots = np.concatenate([row * size + np.arange(length) for row, length in enumerate(lengths)])
    slots = np.pad(slots, (0, len(given.rate) - len(slots)))
    tokens = DeltaInputs(*map(jnp.asarray, given))
    return np.asarray(quickly(read_by_items)(tokens, places, gates, slots, jnp.asarray(begin)))


# tests/model/checks/test_recurrent_programs.py compares the sizes in between with the plain recurrence, too.
@pytest.mark.parametrize("size", [8, CHUNK])
def test_items_read_what_the_plain_recurrence_of_each_of_them_reads(size: int) -> None:
    lengths = [size, 1, size // 2 + 1, size - 1]
    given, begin = heads(4 * size, seed=size), state(14)
    out, first = read(given, lengths, size, 6, begin), 0
    for length in lengths:
        expected, _ = recur(ReferenceHeads(*(part[first : first + length] for part in given)), begin)
        np.testing.assert_allclose(out[first : first + length], expected, atol=2e-5)
        first += length


def test_a_token_that_comes_again_and_again_does_not_spoil_the_numbers() -> None:
    """All keys are the same and nothing is forgotten: powers of such a triangle would be as large as 1e17."""
    same = np.repeat(heads(1, seed=3).keys, CHUNK, axis=0)
    ones, nothing = np.ones((CHUNK, HEADS), np.float32), np.zeros((CHUNK, HEADS), np.float32)
    given, begin = heads(CHUNK, seed=4, keys=same, queries=same, rate=ones, decay=nothing), state(5)
    out, _ = by_chunks(given, begin)
    # The state answers the key with the last value that was written.
    np.testing.assert_allclose(out, given.values, atol=1e-4)


@pytest.mark.parametrize(
    ("way", "size"),
    [
        *((inverse_by_halves, size) for size in (8, 24, CHUNK)),
        *((inverse_in_lanes, size) for size in (16, 32, CHUNK)),
    ],
)
def test_triangles_are_inverted_either_way(way: Callable[[jax.Array], jax.Array], size: int) -> None:
    lower = np.tril(np.random.RandomState(size).uniform(-1, 1, (*BATCH, size, size)).astype(np.float32), -1) / 4
    expected = np.linalg.inv(np.eye(size) + lower.astype(np.float64))
    found = np.asarray(compiled(way)(jnp.asarray(lower)))
    np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("way", [inverse_by_halves, inverse_in_lanes])
def test_a_triangle_on_the_diagonal_of_a_larger_one_has_the_same_bits_as_alone(
    way: Callable[[jax.Array], jax.Array],
) -> None:
    size = 16
    alone = np.tril(np.random.RandomState(9).uniform(-1, 1, (size, size)).astype(np.float32), -1)
    among = np.zeros((CHUNK, CHUNK), np.float32)
    for begin in range(0, CHUNK, size):
        among[begin : begin + size, begin : begin + size] = alone if begin == 2 * size else 3 * alone
    own = slice(2 * size, 3 * size)
    first = np.zeros_like(among)
    first[:size, :size] = alone
    # As many triangles as in the test before, whose programs these are.
    found, expected = (
        np.asarray(compiled(way)(jnp.asarray(np.tile(triangle, (*BATCH, 1, 1)))))[0, 0] for triangle in (among, first)
    )
    assert np.array_equal(found[own, own], expected[:size, :size])


def test_padding_leaves_the_state_as_it_is() -> None:
    given, begin = heads(CHUNK, seed=6), state(7)
    present = np.arange(CHUNK)[:, None] < 41
    padded = given._replace(decay=np.where(present, given.decay, 0), rate=np.where(present, given.rate, 0))
    out, after = by_chunks(padded, begin)
    expected, expected_after = recur(ReferenceHeads(*(part[:41] for part in given)), begin)
    np.testing.assert_allclose(out[:41], expected, atol=2e-5)
    np.testing.assert_allclose(after, expected_after, atol=2e-5)


def test_two_programs_at_once_come_to_an_end() -> None:
    """As they do beside one another when programs are compiled and checked by several threads."""
    batch = DeltaInputs(*(jnp.asarray(np.repeat(part[None], 16, axis=0)) for part in heads(CHUNK, seed=8)))
    programs = [jax.jit(delta_rule).lower(batch, state(seed)).compile() for seed in (1, 2)]
    with ThreadPoolExecutor(len(programs)) as threads:
        running = [threads.submit(one, batch, state(1)) for one in programs * 20]
        assert all(np.isfinite(np.asarray(future.result(timeout=60)[0])).all() for future in running)
