"""The gated delta rule (arXiv:2412.06464), a chunk of tokens at a time.

A head keeps a state S, [Dk, Dv], which answers a key k with the value S^T k. Of each token, in this order:

    S <- exp(decay) S                       forget
    S <- S + rate k (v - S^T k)^T           write: what the state says of the key comes closer to the value
    out = S^T q                             read

Within a chunk, what all tokens write, U, solves a triangular system, so that a chunk is a few products instead of a
step for each token (arXiv:2406.06484, section 3). Everything is float32.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

CHUNK = 64
"""Tokens of a chunk, as in HuggingFace's implementation."""
_LEAST = 8
"""Rows of the blocks of a triangle that are inverted at once. A chunk has as many tokens or more."""


class DeltaInputs(NamedTuple):
    """What a recurrence takes of R sequences of L tokens, float32, for H heads. Queries and keys have length one.

    There may be fewer heads of queries and keys, each for as many heads of values one after another.

    A token whose rate is zero and whose decay is zero leaves the state as it is: so is padding.
    """

    queries: Array  # [R, L, Hk, Dk], already divided by the root of Dk
    keys: Array  # [R, L, Hk, Dk]
    values: Array  # [R, L, H, Dv]
    decay: Array  # a logarithm, zero or less, [R, L, H]
    rate: Array  # from 0 to 1, [R, L, H]


def delta_rule(inputs: DeltaInputs, state: Array) -> tuple[Array, Array]:
    """Return what is read, [R, L, H, Dv], and the states behind the last tokens, [R, H, Dk, Dv].

    state: where all sequences begin, [H, Dk, Dv]. L: at most :data:`CHUNK`, or a multiple of it.
    """
    rows, length = inputs.decay.shape[:2]
    begin = jnp.broadcast_to(state, (rows, *state.shape))
    if length <= CHUNK:
        out, after = through(within(by_head(inputs)), begin)
        return jnp.moveaxis(out, 1, 2), after
    chunks = length // CHUNK

    def split(part: Array) -> Array:
        return jnp.moveaxis(part.reshape(rows, chunks, CHUNK, *part.shape[2:]), 1, 0)

    def through_chunk(carried: Array, chunk: DeltaInputs) -> tuple[Array, Array]:
        out, after = through(within(by_head(chunk)), carried)
        return after, jnp.moveaxis(out, 1, 2)

    after, out = lax.scan(through_chunk, begin, DeltaInputs(*map(split, inputs)))
    return jnp.moveaxis(out, 0, 1).reshape(inputs.values.shape), after


class Chunk(NamedTuple):
    """What the tokens of chunks are to one another, whatever state a chunk begins with: [..., H, L, ...] each."""

    queries: Array  # as they read the state at the chunk's beginning, [..., L, Dk]
    seen: Array  # how each token reads what the others write, [..., L, L]
    written: Array  # what tokens write if the state is empty, [..., L, Dv]
    erased: Array  # how what they write depends on the state, [..., L, Dk]
    left: Array  # their keys, as much as is left of them at the chunk's end, [..., L, Dk]
    fade: Array  # what is left of the state, [..., 1, 1]


def by_head(inputs: DeltaInputs) -> DeltaInputs:
    """Return [..., H, L, ...] of [..., L, H, ...], with queries and keys for each head of values."""
    shared = inputs.values.shape[-2] // inputs.keys.shape[-2]
    vectors = [jnp.swapaxes(part, -3, -2) for part in inputs[:3]]
    if shared > 1:
        vectors[:2] = (jnp.repeat(part, shared, axis=-3) for part in vectors[:2])
    return DeltaInputs(*vectors, *(jnp.swapaxes(part, -2, -1) for part in inputs[3:]))


def within(inputs: DeltaInputs) -> Chunk:
    """Return what the tokens of chunks are to one another; all parts are [..., H, L, ...]."""
    queries, keys, values, decay, rate = inputs
    since = jnp.cumsum(decay, axis=-1)  # the decay from the chunk's beginning to each token
    faded, left = jnp.exp(since)[..., None], jnp.exp(since[..., -1:] - since)[..., None]
    inverse, seen = among(queries, keys, since, rate, jnp.tri(decay.shape[-1], dtype=jnp.bool_))
    written, erased = (times(inverse, rate[..., None] * part) for part in (values, faded * keys))
    return Chunk(faded * queries, seen, written, erased, left * keys, faded[..., -1:, :])


def through(chunk: Chunk, state: Array) -> tuple[Array, Array]:
    """Return what is read, [..., H, L, Dv], and the states behind the chunks, [..., H, Dk, Dv]; state: before them."""
    written = chunk.written - times(chunk.erased, state)
    out = times(chunk.queries, state) + times(chunk.seen, written)
    return out, chunk.fade * state + times(jnp.swapaxes(chunk.left, -1, -2), written)


def among(queries: Array, keys: Array, since: Array, rate: Array, sees: Array) -> tuple[Array, Array]:
    """Return by what L tokens multiply what they want to write, and by what they read what is written, [..., L, L].

    queries, keys: [..., L, Dk]; since: their decay from the beginning, [..., L]; sees: which tokens each token sees,
    itself and others before it, bool [..., L, L].
    """
    between = jnp.exp(jnp.where(sees, since[..., :, None] - since[..., None, :], -jnp.inf))
    transposed = jnp.swapaxes(keys, -1, -2)
    # U + lower U = wanted: what a token writes depends on what those before it in the chunk have written.
    lower = rate[..., None] * jnp.tril(between * times(keys, transposed), -1)
    return _inverse(lower), between * times(queries, transposed)


def _inverse(lower: Array) -> Array:
    """Return the inverse of I + lower, [..., C, C]; lower: zero on the diagonal and above, C a power of two from 8 up.

    It is computed block by block, so that no error grows as in powers of the whole. The triangular solver of LAPACK is
    not an option: two programs that use it at once wait for each other for ever (jaxlib 0.10 on two cores).
    """

    def blocks(row: int, column: int, size: int, every: int) -> Array:
        """Return blocks of a size, from one place on, each so many rows and columns behind the one before it."""
        count = lower.shape[-1] // every
        places = ((row + number * every, column + number * every) for number in range(count))
        return jnp.stack([lower[..., r : r + size, c : c + size] for r, c in places], axis=-3)

    size, least, whole = _LEAST, blocks(0, 0, _LEAST, _LEAST), jnp.eye(_LEAST)
    squared = times(least, least)
    # I - A + A^2 - A^3 + ..., whose powers from the eighth on are zero.
    found = times(times(whole - least, whole + squared), whole + times(squared, squared))
    while size < lower.shape[-1]:
        above, below = found[..., 0::2, :, :], found[..., 1::2, :, :]
        corner = -times(times(below, blocks(size, 0, size, 2 * size)), above)
        upper = jnp.concatenate([above, jnp.zeros_like(above)], axis=-1)
        found = jnp.concatenate([upper, jnp.concatenate([corner, below], axis=-1)], axis=-2)
        size *= 2
    return found[..., 0, :, :]


def times(one: Array, other: Array) -> Array:
    """Return a product of matrices in float32."""
    return jnp.matmul(one, other, precision=lax.Precision.HIGHEST)
