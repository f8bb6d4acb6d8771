"""The norm and the rotation of queries and keys by their positions, between their projection and attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from model.layers.linear import RMSNorm, Weight, rms_norm

ProjectQKV = Callable[
    [Array, RMSNorm | None, Sequence[Weight], Sequence[RMSNorm | None], int], tuple[Array, Array, Array]
]
"""Returns queries, keys and values [T, heads, D] of hidden states, float32 [T, width]. It takes the norm before the
projections, the weights of the three, the norms of a head of queries and of keys, and D."""


class Rotation(Protocol):
    """The rotary positions of some rows."""

    @property
    def project_qkv(self) -> ProjectQKV | None:
        """How one kernel computes queries, keys and values of hidden states; None: there is none."""

    def heads(self, projected: Array, head_dim: int, norm: RMSNorm | None, dtype: DTypeLike) -> Array:
        """Return heads [..., heads, D] in ``dtype``, normed and rotated; projected: float32 [..., heads * D]."""

    def values(self, projected: Array, head_dim: int, dtype: DTypeLike) -> Array:
        """Return the heads of values, which are not rotated, in the same way."""


class RotaryEmbedding(NamedTuple):
    """A :class:`Rotation` by cosines and sines of the rotary angles of positions, float32 [..., pairs].

    Where there are fewer pairs than half of a head, the head's last numbers are not rotated.
    """

    cos: Array
    sin: Array

    @property
    def project_qkv(self) -> ProjectQKV | None:
        """See :class:`Rotation`."""
        return None

    def heads(self, projected: Array, head_dim: int, norm: RMSNorm | None, dtype: DTypeLike) -> Array:
        """See :class:`Rotation`. Each pair (d, d + pairs) is rotated by its angle, in HuggingFace's pairing."""
        heads = split(projected, head_dim)
        heads = heads if norm is None else rms_norm(heads, norm.weight, norm.epsilon)
        cos, sin = self.cos[..., None, :], self.sin[..., None, :]
        pairs = cos.shape[-1]
        first, second, *rest = jnp.split(heads, [pairs, 2 * pairs] if 2 * pairs < head_dim else 2, axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, *rest], axis=-1).astype(dtype)

    def values(self, projected: Array, head_dim: int, dtype: DTypeLike) -> Array:
        """See :class:`Rotation`."""
        return split(projected, head_dim).astype(dtype)


def split(projected: Array, head_dim: int) -> Array:
    """Return [..., heads * D] as [..., heads, D]."""
    return projected.reshape(*projected.shape[:-1], -1, head_dim)
