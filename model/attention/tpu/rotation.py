"""The projection, the norm and the rotation of queries and keys on a TPU, in one kernel.

XLA splits heads into halves and joins them again, in a layout with rows along lanes, which takes twice as long by the
compiler's estimate. Here a head is a row of registers, whose halves change places within it. The matrix unit also adds
up the squares of a head, which takes a third of the time of adding up lanes; it rounds each square to bf16.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from model.attention.tpu.projection import product, projected
from model.layers.linear import Weight, project
from model.layers.rotation import HeadNorm, RotaryEmbedding, split


@dataclass(frozen=True, slots=True)
class TPURotation:
    """A :class:`model.layers.rotation.Rotation` of rows [T, …] by a kernel, to bf16."""

    cos: Array  # [T, D]: of both halves
    sin: Array  # [T, D]: of both halves, the first of which is negative
    interpret: Any = False  # the parameter of the same name of ``pallas_call``

    @classmethod
    def of(cls, rotary: RotaryEmbedding, *, interpret: Any = False) -> TPURotation:
        """Return the same rotation by a kernel."""
        cos, sin = rotary
        both = jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)
        # Without the barrier, the compiler computes them again in every layer.
        cos, sin = lax.optimization_barrier(both)  # type: ignore[no-untyped-call]
        return cls(cos, sin, interpret)

    def heads(self, projected: Array, head_dim: int, norm: HeadNorm | None, dtype: DTypeLike) -> Array:
        """See :class:`model.layers.rotation.Rotation`."""
        assert jnp.dtype(dtype) == jnp.bfloat16
        return self._rotated(projected, [], projected.shape[1], head_dim, norm)

    def projected(self, entering: Array, kernel: Weight, head_dim: int, norm: HeadNorm | None) -> Array:
        """See :class:`model.layers.rotation.Rotation`."""
        if kernel.dtype != jnp.bfloat16:
            return self.heads(project(entering, kernel[...]), head_dim, norm, kernel.dtype)
        return self._rotated(entering.astype(jnp.bfloat16), [kernel], kernel.shape[1], head_dim, norm)

    def values(self, projected: Array, head_dim: int, dtype: DTypeLike) -> Array:
        """See :class:`model.layers.rotation.Rotation`."""
        # Without the barrier, the compiler computes values with rows along lanes, and copies the weight for that.
        flat = lax.optimization_barrier(projected.astype(dtype))  # type: ignore[no-untyped-call]
        return split(flat, head_dim)

    def _rotated(
        self, entering: Array, weights: Sequence[Weight], out: int, head_dim: int, norm: HeadNorm | None
    ) -> Array:
        T, D = self.cos.shape
        assert head_dim == D
        rotated = projected(
            entering,
            weights,
            functools.partial(_rotate, epsilon=None if norm is None else norm.epsilon),
            of_rows=[self.cos, self.sin],
            of_all=[] if norm is None else [norm.weight.astype(jnp.float32)[None]],
            columns=D * math.gcd(out // D, 2),  # the matrix unit is as wide as two heads
            name="scoreline_rotation",
            interpret=self.interpret,
        )
        return rotated.reshape(T, -1, D)


def _rotate(parts: Sequence[Array], angles: Sequence[Array], weights: Sequence[Array], epsilon: float | None) -> Array:
    """Return some heads of some rows, normed and rotated; weights: that of the norm, if there is one."""
    (heads,), (cos, sin) = parts, angles
    width, D = heads.shape[1], cos.shape[1]
    scale = None
    if epsilon is not None:
        # The weights of a head are the same for all rows, so they are multiplied once for all heads.
        (weight,) = weights
        cos, sin = cos * weight, sin * pltpu.roll(weight, D // 2, 1)
        row, column = (lax.broadcasted_iota(jnp.int32, (width, width), axis) // D for axis in (0, 1))
        same_head = jnp.where(row == column, 1.0, 0.0).astype(jnp.bfloat16)
        scale = lax.rsqrt(product((heads * heads).astype(jnp.bfloat16), same_head) / D + epsilon)
    rotated = []
    for begin in range(0, width, D):
        head = heads[:, begin : begin + D]
        turned = head * cos + pltpu.roll(head, D // 2, 1) * sin
        rotated.append(turned if scale is None else turned * scale[:, begin : begin + D])
    return jnp.concatenate(rotated, axis=1)
