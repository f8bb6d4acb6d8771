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


class DeltaInputs(NamedTuple):
    """What a recurrence takes of R sequences of L tokens, float32, for H heads. Queries and keys have length one.

    A token whose rate is zero and whose decay is zero leaves the state as it is: so is padding.
    """

    queries: Array  # [R, L, H, Dk], already divided by the root of Dk
    keys: Array  # [R, L, H, Dk]
    values: Array  # [R, L, H, Dv]
    decay: Array  # a logarithm, zero or less, [R, L, H]
    rate: Array  # from 0 to 1, [R, L, H]


def delta_rule(inputs: DeltaInputs, state: Array) -> tuple[Array, Array]:
    """Return what is read, [R, L, H, Dv], and the states behind the last tokens, [R, H, Dk, Dv].

    state: where all sequences begin, [H, Dk, Dv]. L: at most :data:`CHUNK`, or a multiple of it.
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

    begin = jnp.broadcast_to(state, (rows, *state.shape))
    after, out = lax.scan(through, begin, DeltaInputs(*map(split, inputs)))
    return jnp.moveaxis(out, 0, 1).reshape(inputs.values.shape), after


def _by_head(inputs: DeltaInputs) -> DeltaInputs:
    """Return [R, H, L, ...] of [R, L, H, ...]."""
    return DeltaInputs(*(jnp.moveaxis(part, 2, 1) for part in inputs))


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
    lower = rate[..., None] * between * _product("rhld,rhmd->rhlm", keys, keys)
    wanted = rate[..., None] * (values - faded * _product(of_rows, keys, state))
    written = lax.linalg.triangular_solve(lower, wanted, left_side=True, lower=True, unit_diagonal=True)
    seen = between * _product("rhld,rhmd->rhlm", queries, keys)
    out = faded * _product(of_rows, queries, state) + _product("rhlm,rhme->rhle", seen, written)
    left = jnp.exp(since[..., -1:] - since)[..., None]
    after = faded[..., -1:, :] * state + _product("rhld,rhle->rhde", keys * left, written)
    return out, after


def _product(subscripts: str, one: Array, other: Array) -> Array:
    return jnp.einsum(subscripts, one, other, precision=lax.Precision.HIGHEST)
