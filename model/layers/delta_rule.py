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
"""Rows of the blocks of a triangle that are inverted at once. A chunk has a multiple of as many tokens."""


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


class Chunk(NamedTuple):
    """What does not depend on the state before a chunk, for one chunk or many at once."""

    keys: Array  # [..., L, Dk]
    values: Array  # [..., L, Dv]
    faded: Array  # how much each token sees of the state before the chunk, [..., L]
    asked: Array  # what the state before the chunk is asked: keys, and behind them queries, both faded, [..., 2 L, Dk]
    ending: Array  # keys as far as they are left behind the chunk, [..., Dk, L]
    solved: Array  # turns the values that the state before the chunk lacks into what is written, [..., L, L]
    seen: Array  # how much each token reads of what those up to it have written, [..., L, L]

    @classmethod
    def of(cls, inputs: DeltaInputs, sees: Array | None = None) -> Chunk:
        """Compute it from parts [..., L, ...], which have queries and keys for each head of values.

        sees: bool [..., L, L], the tokens up to itself that each token sees, where several sequences share a chunk.
        Nothing goes on from such a chunk.
        """
        queries, keys, values, decay, rate = inputs
        earlier = jnp.tri(decay.shape[-1], dtype=jnp.bool_)
        if sees is None:
            since = jnp.cumsum(decay, axis=-1)  # the decay from the beginning to each token
        else:
            earlier &= sees
            since = times(earlier.astype(jnp.float32), decay[..., None])[..., 0]
        between = jnp.exp(jnp.where(earlier, since[..., :, None] - since[..., None, :], -jnp.inf))
        faded, left = jnp.exp(since), jnp.exp(since[..., -1:] - since)
        # U + lower U = rate wanted: what a token writes depends on what those before it in the chunk have written.
        lower = rate[..., None] * jnp.tril(between * times(keys, _turned(keys)), -1)
        return cls(
            keys,
            values,
            faded,
            jnp.concatenate([keys, queries], axis=-2) * jnp.concatenate([faded, faded], axis=-1)[..., None],
            _turned(keys * left[..., None]),
            _inverse(lower) * rate[..., None, :],
            between * times(queries, _turned(keys)),
        )

    def through(self, state: Array) -> tuple[Array, Array]:
        """Return the state behind the chunk, [..., Dk, Dv], and what is read, [..., L, Dv]; state: before it."""
        of_keys, of_queries = jnp.split(times(self.asked, state), 2, axis=-2)
        written = times(self.solved, self.values - of_keys)
        after = self.faded[..., -1:, None] * state + times(self.ending, written)
        return after, of_queries + times(self.seen, written)

    def apart(self) -> tuple[Array, Array]:
        """Return what the state before the chunk is not asked although queries ask it, [..., L, Dk], and what is read
        if it is empty, [..., L, Dv]. What is read depends on the state in a linear way.
        """
        weights = times(self.seen, self.solved)
        return times(weights * self.faded[..., None, :], self.keys), times(weights, self.values)


def delta_rule(inputs: DeltaInputs, state: Array) -> tuple[Array, Array]:
    """Return what is read, [R, L, H, Dv], and the states behind the last tokens, [R, H, Dk, Dv].

    state: where all sequences begin, [H, Dk, Dv], or where each one does, [R, H, Dk, Dv]. L: a multiple of 8 up to
    :data:`CHUNK`, or a multiple of that.
    """
    rows, length = inputs.decay.shape[:2]
    size = min(length, CHUNK)

    def split(part: Array) -> Array:
        """Return [chunks, R, H, size, ...]."""
        return jnp.moveaxis(part.reshape(rows, -1, size, *part.shape[2:]), (1, 3), (0, 2))

    # All that does not depend on a state is computed for all chunks at once.
    chunks = Chunk.of(DeltaInputs(*map(split, for_each_head(inputs))))
    begin = jnp.broadcast_to(state, (rows, *state.shape[-3:]))
    if length == size:
        after, out = Chunk(*(part[0] for part in chunks)).through(begin)
        return jnp.moveaxis(out, 1, 2), after
    after, out = lax.scan(lambda carried, chunk: chunk.through(carried), begin, chunks)
    return jnp.moveaxis(out, (0, 2), (1, 3)).reshape(inputs.values.shape), after


def read_by_items(tokens: DeltaInputs, places: Array, gates: tuple[Array, Array], slots: Array, state: Array) -> Array:
    """Return what T tokens of R items read, [T, H, Dv]. All items begin with one state, [H, Dk, Dv].

    tokens: of all items, [T, ...], whose decay and rate are not used. places: where the tokens of each item are,
    [R, L], a chunk at most. gates: their decay and rate, [R, L, H]. slots: item x L + offset in it of each token, [T].

    The state is asked once for each token of the step, instead of by the keys and the queries of padded items.
    """
    queries, *others = (jnp.moveaxis(part, 1, 0) for part in for_each_head(tokens)[:3])  # [H, T, ...]
    of_items = (part[:, places] for part in (queries, *others))
    items = Chunk.of(DeltaInputs(*of_items, *(jnp.moveaxis(gate, 2, 0) for gate in gates)))  # [H, R, L, ...]

    def of_tokens(part: Array) -> Array:
        """Return [H, T, ...] of [H, R, L, ...]."""
        return part.reshape(len(part), -1, *part.shape[3:])[:, slots]

    of_keys, read = items.apart()
    asked = of_tokens(items.faded)[..., None] * queries - of_tokens(of_keys)
    return jnp.moveaxis(times(asked, state) + of_tokens(read), 0, 1)


def for_each_head(inputs: DeltaInputs) -> DeltaInputs:
    """Return queries and keys for each head of values."""
    shared = inputs.values.shape[-2] // inputs.keys.shape[-2]
    if shared == 1:
        return inputs
    queries, keys = (jnp.repeat(part, shared, axis=-2) for part in inputs[:2])
    return inputs._replace(queries=queries, keys=keys)


def _inverse(lower: Array) -> Array:
    """Return the inverse of I + lower, [..., C, C]; lower: zero on the diagonal and above, C a multiple of 8."""
    if lower.shape[-1] == _LEAST or lower.shape[-1].bit_count() > 1:
        return inverse_by_halves(lower)
    found: Array = lax.platform_dependent(lower, tpu=inverse_in_lanes, default=inverse_by_halves)
    return found


def inverse_in_lanes(lower: Array) -> Array:
    """Return the same for C a power of two from 16 on, with all matrices side by side in the lanes of a TPU.

    Its units for products take as long for a small matrix as for a large one, so they compute the last halves alone.
    """
    turned, size = jnp.moveaxis(lower.reshape(-1, *lower.shape[-2:]), 0, -1), _LEAST

    def places(row: int, every: int) -> Array:
        """Return blocks of a size, from a row in the first column on, and each so many rows and columns further."""
        begins = range(0, len(turned), every)
        return jnp.stack([turned[row + begin : row + begin + size, begin : begin + size] for begin in begins])

    def product(one: Array, other: Array) -> Array:
        return (one[:, :, :, None] * other[:, None]).sum(axis=2)

    found = jnp.stack(_rows_of_inverse(jnp.moveaxis(places(0, size), 0, 2)))
    found = jnp.moveaxis(found, 2, 0)
    while 2 * size < len(turned):
        corner = -product(product(found[1::2], places(size, 2 * size)), found[0::2])
        found = _joined(found[0::2], corner, found[1::2], axis=1)
        size *= 2
    above, below = jnp.moveaxis(found, -1, 1).reshape(2, *lower.shape[:-2], size, size)
    return _joined(above, -times(times(below, lower[..., size:, :size]), above), below, axis=lower.ndim - 2)


def _joined(above: Array, corner: Array, below: Array, axis: int) -> Array:
    """Return matrices that have nothing above the diagonal. axis: that of their rows, before that of their columns."""
    nothing = jnp.zeros((*above.shape[: axis + 1], below.shape[axis], *above.shape[axis + 2 :]), above.dtype)
    upper, lower = jnp.concatenate([above, nothing], axis + 1), jnp.concatenate([corner, below], axis + 1)
    return jnp.concatenate([upper, lower], axis)


def inverse_by_halves(lower: Array) -> Array:
    """Return the same half by half, so that no error grows as in powers of the whole.

    A power of two of rows from a multiple of it on is always a half of something, so a sequence there has the same bits
    as alone. The triangular solver of LAPACK is not an option: two programs that use it at once wait for each other for
    ever (jaxlib 0.10 on two cores).
    """
    begins = range(0, lower.shape[-1], _LEAST)
    diagonal = [lower[..., begin : begin + _LEAST, begin : begin + _LEAST] for begin in begins]
    blocks = _inverse_of_blocks(jnp.stack(diagonal, axis=-3))

    def of(begin: int, size: int) -> Array:
        """Return the inverse of a part on the diagonal."""
        if size == _LEAST:
            return blocks[..., begin // _LEAST, :, :]
        half = 2 ** (size - 1).bit_length() // 2
        above, below = of(begin, half), of(begin + half, size - half)
        between = lower[..., begin + half : begin + size, begin : begin + half]
        return _joined(above, -times(times(below, between), above), below, axis=lower.ndim - 2)

    return of(0, lower.shape[-1])


def _inverse_of_blocks(lower: Array) -> Array:
    """Return the same for small blocks, row by row: vectors go over the blocks, which makes it cheap on a CPU."""
    size = lower.shape[-1]
    found = _rows_of_inverse(jnp.moveaxis(lower.reshape(-1, size, size), 0, -1))
    return jnp.moveaxis(jnp.stack(found), -1, 0).reshape(lower.shape)


def _rows_of_inverse(lower: Array) -> list[Array]:
    """Return the rows of inverses, [size, ...] each, of blocks [size, size, ...]."""
    size = len(lower)
    whole = jnp.broadcast_to(jnp.eye(size, dtype=lower.dtype).reshape(size, size, *[1] * (lower.ndim - 2)), lower.shape)
    found = [whole[0]]
    for row in range(1, size):
        found.append(whole[row] - sum(lower[row, column] * found[column] for column in range(row)))
    return found


def times(one: Array, other: Array) -> Array:
    """Return a product of matrices, [..., A, C], of [..., A, B] and [..., B, C]."""
    return jnp.matmul(one, other, precision=lax.Precision.HIGHEST)


def _turned(matrices: Array) -> Array:
    return jnp.swapaxes(matrices, -1, -2)
