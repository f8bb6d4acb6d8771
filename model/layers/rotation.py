"""The norm and the rotation of queries and keys by their positions, between their projection and attention."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from model.layers.linear import Weight, project, rms_norm


class HeadNorm(NamedTuple):
    """The root-mean-square norm of a head, in families that have one."""

    weight: Array  # [D]
    epsilon: float


class Rotation(Protocol):
    """The rotary positions of some rows."""

    def heads(self, projected: Array, head_dim: int, norm: HeadNorm | None, dtype: DTypeLike) -> Array:
        """Return heads [..., heads, D] in ``dtype``, normed and rotated; projected: float32 [..., heads * D]."""

    def projected(self, entering: Array, kernel: Weight, head_dim: int, norm: HeadNorm | None) -> Array:
        """Return the same of what enters, [..., width], by a projection [width, heads * D], in the kernel's dtype."""

    def values(self, projected: Array, head_dim: int, dtype: DTypeLike) -> Array:
        """Return the heads of values, which are not rotated, in the same way."""


class RotaryEmbedding(NamedTuple):
    """A :class:`Rotation` by cosines and sines of the rotary angles of positions, float32 [..., pairs].

    Where there are fewer pairs than half of a head, the head's last numbers are not rotated.
    """

    cos: Array
    sin: Array

    def heads(self, projected: Array, head_dim: int, norm: HeadNorm | None, dtype: DTypeLike) -> Array:
        """See :class:`Rotation`. Each pair (d, d + pairs) is rotated by its angle, in HuggingFace's pairing."""
        heads = split(projected, head_dim)
        heads = heads if norm is None else rms_norm(heads, norm.weight, norm.epsilon)
        cos, sin = self.cos[..., None, :], self.sin[..., None, :]
        pairs = cos.shape[-1]
        first, second, *rest = jnp.split(heads, [pairs, 2 * pairs] if 2 * pairs < head_dim else 2, axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, *rest], axis=-1).astype(dtype)

    def projected(self, entering: Array, kernel: Weight, head_dim: int, norm: HeadNorm | None) -> Array:
        """See :class:`Rotation`."""
        return self.heads(project(entering, kernel[...]), head_dim, norm, kernel.dtype)

    def values(self, projected: Array, head_dim: int, dtype: DTypeLike) -> Array:
        """See :class:`Rotation`."""
        return split(projected, head_dim).astype(dtype)


def split(projected: Array, head_dim: int) -> Array:
    """Return [..., heads * D] as [..., heads, D]."""
    return projected.reshape(*projected.shape[:-1], -1, head_dim)
