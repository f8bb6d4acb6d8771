"""The softmax of rows over keys that come in parts (FlashAttention, arXiv 2205.14135), inside of a TPU's kernel.

The scores of a chunk of rows are [keys, rows]. They are in powers of two, because queries are scaled accordingly. The
weight of a key is relative to a *reference* of its row. Usually, that is the row's largest score so far (:func:`add`).
Then no weight is known before all scores of a part are, so all of them are stored and read again, and the sums so far
shrink with every part. But any reference gives the same quotient while no number overflows. So :func:`add_relative`
takes the reference that a row has, and looks for the largest score only if a sum shows that the reference is too small.
Whether that is so is decided for each row by its own scores, so it changes no bit of other rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

UNSEEN = -1e30
"""The score of a key that is not seen. It is finite, so that no difference of two infinities is ever taken."""

LARGEST_TOTAL = 2.0**64
"""A sum of weights above which a row gets a larger reference. Sums and products stay far from the ends of float32."""

FIRST_KEYS = 16
"""Keys of a prefix whose largest score is the first reference of a row that sees nothing else."""


class Softmax(NamedTuple):
    """The softmax of the rows of all chunks over the keys so far, as references to float32."""

    reference: Any  # [chunks, 1, W]: what weights are relative to; UNSEEN before any key
    total: Any  # [chunks, 1, W]: the sum of the weights
    out: Any  # [chunks, D, W]: the weighted sum of values


class Keys(NamedTuple):
    """A part of the keys of a chunk, in pieces."""

    keys: Sequence[Callable[[], Array]]  # each piece is read where it is needed: [keys, D]
    values: Sequence[Callable[[], Array]]
    seen: Callable[[], list[Array]]  # which keys of each piece the rows of the chunk see: [keys, W]


def add(chunks: Sequence[Any], state: Softmax, queries: Callable[[Any], Array], parts: Callable[[Any], Keys]) -> None:
    """Add keys to the softmax of chunks, relative to the largest score of each row.

    queries: of a chunk, [W, D]; parts: of a chunk.
    """
    of_chunks = [parts(chunk) for chunk in chunks]
    scores, weights = dict[int, list[Array]](), dict[int, tuple[list[Array], Array]]()

    def score(index: int) -> None:
        scores[index] = _scores(queries(chunks[index]), of_chunks[index])

    def soften(index: int) -> None:
        chunk, pieces = chunks[index], scores.pop(index)
        before = state.reference[chunk]
        largest = _largest(pieces, before)
        exponentials, shrunk = [jnp.exp2(piece - largest) for piece in pieces], _shrunk(before, largest)
        state.total[chunk] = state.total[chunk] * shrunk + _sum(exponentials)
        state.reference[chunk] = largest
        weights[index] = [piece.astype(jnp.bfloat16) for piece in exponentials], shrunk

    def weigh(index: int) -> None:
        pieces, shrunk = weights.pop(index)
        state.out[chunks[index]] = state.out[chunks[index]] * shrunk + _weighted(of_chunks[index], pieces)

    _in_turn(len(chunks), ((score, 3), (soften, 0), (weigh, -1)))


def add_relative(
    chunks: Sequence[Any],
    state: Softmax,
    before: Softmax,
    queries: Callable[[Any], Array],
    parts: Callable[[Any], Keys],
) -> None:
    """Add keys to the softmax of adjacent chunks, relative to the references that rows have.

    Rows whose sum shows that their reference is too small get a larger one, and then the keys are added once more.

    before: takes up what the state of these chunks was; only its total and its output are used.
    """
    of_chunks = [parts(chunk) for chunk in chunks]

    def attempt(left: Any) -> Any:
        scores, weights = dict[int, list[Array]](), dict[int, list[Array]]()

        def score(index: int) -> None:
            scores[index] = _scores(queries(chunks[index]), of_chunks[index])

        def soften(index: int) -> None:
            chunk, pieces = chunks[index], scores.pop(index)
            reference = state.reference[chunk]
            exponentials = [jnp.exp2(piece - reference) for piece in pieces]
            before.total[index] = state.total[chunk]
            state.total[chunk] = before.total[index] + _sum(exponentials)
            weights[index] = [piece.astype(jnp.bfloat16) for piece in exponentials]

        def weigh(index: int) -> None:
            chunk = chunks[index]
            before.out[index] = state.out[chunk]
            state.out[chunk] = before.out[index] + _weighted(of_chunks[index], weights.pop(index))

        _in_turn(len(chunks), ((score, 2), (soften, 0), (weigh, 0)))
        surpassed = [jnp.where(state.total[chunk] <= LARGEST_TOTAL, 0.0, 1.0) for chunk in chunks]
        again = (left > 1) & (jnp.max(functools.reduce(jnp.maximum, surpassed)) > 0.0)

        @pl.when(again)
        def raise_references() -> None:
            pl.loop(0, len(chunks))(functools.partial(_raise, chunks[0], state, before, queries, parts))

        return again.astype(jnp.int32)

    lax.while_loop(lambda left: left > 0, attempt, jnp.int32(2))


def _raise(
    first: Any,
    state: Softmax,
    before: Softmax,
    queries: Callable[[Any], Array],
    parts: Callable[[Any], Keys],
    index: Any,
) -> None:
    """Give back to a chunk what it was before keys were added; rows whose sum is too large get a larger reference."""
    chunk = first + index
    largest = _largest(_scores(queries(chunk), parts(chunk)), state.reference[chunk])
    reference = jnp.where(state.total[chunk] <= LARGEST_TOTAL, state.reference[chunk], largest)
    shrunk = _shrunk(state.reference[chunk], reference)
    state.total[chunk] = before.total[index] * shrunk
    state.out[chunk] = before.out[index] * shrunk
    state.reference[chunk] = reference


def _shrunk(before: Array, reference: Array) -> Array:
    """Return what sums are multiplied by if their reference changes: exactly 1 if it does not, on any device."""
    return jnp.where(before == reference, 1.0, jnp.exp2(before - reference))


def refer(chunk: Any, state: Softmax, queries: Array, keys: Array, seen: Array) -> None:
    """Give rows the first reference: queries [W, D], keys [n, D], and which of them the rows see, [n, W]."""
    scores = jnp.where(seen, _product(keys, queries, 1, 1), UNSEEN)
    state.reference[chunk] = _largest([scores], state.reference[chunk])


def _scores(queries: Array, part: Keys) -> list[Array]:
    products = [_product(keys(), queries, 1, 1) for keys in part.keys]
    return [jnp.where(seen, product, UNSEEN) for seen, product in zip(part.seen(), products, strict=True)]


def _largest(pieces: Sequence[Array], before: Array) -> Array:
    return functools.reduce(jnp.maximum, [jnp.max(piece, axis=0, keepdims=True) for piece in pieces], before)


def _sum(pieces: Sequence[Array]) -> Array:
    return functools.reduce(jnp.add, [jnp.sum(piece, axis=0, keepdims=True) for piece in pieces])


def _weighted(part: Keys, weights: Sequence[Array]) -> Array:
    sums = [_product(values(), piece, 0, 0) for values, piece in zip(part.values, weights, strict=True)]
    return functools.reduce(jnp.add, sums)


def _product(one: Array, other: Array, axis: int, other_axis: int) -> Array:
    """Return the product of two bf16 matrices that is summed over one axis of each, in float32."""
    dimensions = (((axis,), (other_axis,)), ((), ()))
    return lax.dot_general(one, other, dimensions, preferred_element_type=jnp.float32)


def _in_turn(count: int, stages: Sequence[tuple[Callable[[int], None], int]]) -> None:
    """Run stages for each of ``count`` chunks, each so many chunks ahead of the others.

    The stages of a chunk are so written between those of its neighbours, since the compiler reorders little.
    """
    offsets = [ahead for _, ahead in stages]
    for turn in range(-max(offsets), count - min(offsets)):
        for stage, ahead in stages:
            if 0 <= turn + ahead < count:
                stage(turn + ahead)
