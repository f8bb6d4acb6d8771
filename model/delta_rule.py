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

    state: where all sequences begin, [H, Dk, Dv], or each of them, [R, H, Dk, Dv]. L: at most :data:`CHUNK`, or a
    multiple of it.
    """
    rows, length = inputs.decay.shape[:2]
    if length <= CHUNK:
        out, after = _chunk(_by_head(inputs), state)
        return jnp.moveaxis(out, 1, 2), after
    chunks = length // CHUNK

    def split(part: Array) -> Array:
        return jnp.moveaxis(part.reshape(rows, chunks, CHUNK, *part.shape[2:]), 1, 0)

    def through(carried: Array, chunk: DeltaInputs) -> tuple[Array, Array]:
        out, after = _chunk(_by_head(chunk), carried)
        return after, jnp.moveaxis(out, 1, 2)

    begin = jnp.broadcast_to(state, (rows, *state.shape[-3:]))
    after, out = lax.scan(through, begin, DeltaInputs(*map(split, inputs)))
    return jnp.moveaxis(out, 0, 1).reshape(inputs.values.shape), after


def _by_head(inputs: DeltaInputs) -> DeltaInputs:
    """Return [R, H, L, ...] of [R, L, H, ...], with queries and keys for each head of values."""
    shared = inputs.values.shape[2] // inputs.keys.shape[2]
    queries, keys, *others = (jnp.moveaxis(part, 2, 1) for part in inputs)
    if shared > 1:
        queries, keys = (jnp.repeat(part, shared, axis=1) for part in (queries, keys))
    return DeltaInputs(queries, keys, *others)


def _chunk(inputs: DeltaInputs, state: Array) -> tuple[Array, Array]:
    """Return what is read and the states behind one chunk; all parts are [R, H, L, ...].

    state: [H, Dk, Dv] for all rows, or [R, H, Dk, Dv].
    """
    queries, keys, values, decay, rate = inputs
    length = decay.shape[-1]
    of_rows = "rhld,rhde->rhle" if state.ndim == 4 else "rhld,hde->rhle"
    since = jnp.cumsum(decay, axis=-1)  # the decay from the chunk's beginning to each token
    earlier = jnp.tri(length, dtype=jnp.bool_)
    between = jnp.exp(jnp.where(earlier, since[..., :, None] - since[..., None, :], -jnp.inf))
    faded = jnp.exp(since)[..., None]
    # U + lower U = wanted: what a token writes depends on what those before it in the chunk have written.
    lower = rate[..., None] * jnp.tril(between * _product("rhld,rhmd->rhlm", keys, keys), -1)
    wanted = rate[..., None] * (values - faded * _product(of_rows, keys, state))
    written = jnp.matmul(_inverse(lower), wanted, precision=lax.Precision.HIGHEST)
    seen = between * _product("rhld,rhmd->rhlm", queries, keys)
    out = faded * _product(of_rows, queries, state) + _product("rhlm,rhme->rhle", seen, written)
    left = jnp.exp(since[..., -1:] - since)[..., None]
    after = faded[..., -1:, :] * state + _product("rhld,rhle->rhde", keys * left, written)
    return out, after


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

    def times(one: Array, other: Array) -> Array:
        return jnp.matmul(one, other, precision=lax.Precision.HIGHEST)

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


def _product(subscripts: str, one: Array, other: Array) -> Array:
    return jnp.einsum(subscripts, one, other, precision=lax.Precision.HIGHEST)
