"""The norm before attention, the projections, and the norm and the rotation of heads on a TPU, in one kernel.

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

from model.layers.linear import RMSNorm, Weight
from model.layers.rotation import RotaryEmbedding, split
from model.layers.tpu.projection import LARGE, Projection, Room, product, projected

ROTATION, QKV = "scoreline_rotation", "scoreline_qkv"
"""The names of the kernel of heads that are projected already, and of that which projects them."""


@dataclass(frozen=True, slots=True)
class TPURotation:
    """A :class:`model.layers.rotation.Rotation` of rows [T, …] by a kernel, to bf16."""

    cos: Array  # [T, D]: of both halves
    sin: Array  # [T, D]: of both halves, the first of which is negative
    room: Room = LARGE  # of its kernels
    interpret: Any = False  # the parameter of the same name of ``pallas_call``

    @classmethod
    def of(cls, rotary: RotaryEmbedding, *, room: Room = LARGE, interpret: Any = False) -> TPURotation:
        """Return the same rotation by a kernel."""
        cos, sin = rotary
        both = jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)
        # Without the barrier, the compiler computes them again in every layer.
        cos, sin = lax.optimization_barrier(both)  # type: ignore[no-untyped-call]
        return cls(cos, sin, room, interpret)

    def project_qkv(
        self,
        hidden: Array,
        norm: RMSNorm | None,
        weights: Sequence[Weight],
        of_heads: Sequence[RMSNorm | None],
        head_dim: int,
    ) -> tuple[Array, Array, Array]:
        """See :data:`model.layers.rotation.ProjectQKV`."""
        assert head_dim == self.cos.shape[1], "whole heads are rotated"
        query_weight, key_weight, value_weight = weights
        rotated = [
            self._rotated([weight], weight.shape[1], norm_of)
            for weight, norm_of in zip((query_weight, key_weight), of_heads, strict=True)
        ]
        values = Projection([value_weight], _unchanged, columns_of(value_weight.shape[1], head_dim))
        entering = hidden if norm is not None else hidden.astype(jnp.bfloat16)
        found = self._projected(entering, [*rotated, values], norm)
        queries, keys, plain = (split(flat, head_dim) for flat in found)
        return queries, keys, plain

    def heads(self, projected: Array, head_dim: int, norm: RMSNorm | None, dtype: DTypeLike) -> Array:
        """See :class:`model.layers.rotation.Rotation`."""
        assert jnp.dtype(dtype) == jnp.bfloat16
        assert head_dim == self.cos.shape[1], "whole heads are rotated"
        (flat,) = self._projected(projected, [self._rotated([], projected.shape[1], norm)], None)
        return split(flat, head_dim)

    def values(self, projected: Array, head_dim: int, dtype: DTypeLike) -> Array:
        """See :class:`model.layers.rotation.Rotation`."""
        # Without the barrier, the compiler computes values with rows along lanes, and copies the weight for that.
        flat = lax.optimization_barrier(projected.astype(dtype))  # type: ignore[no-untyped-call]
        return split(flat, head_dim)

    def _rotated(self, weights: Sequence[Weight], out: int, norm: RMSNorm | None) -> Projection:
        """Return the projection of rotated heads."""
        finish = functools.partial(_rotate, epsilon=None if norm is None else norm.epsilon)
        of_all = [] if norm is None else [norm.weight.astype(jnp.float32)[None]]
        return Projection(weights, finish, columns_of(out, self.cos.shape[1]), of_all)

    def _projected(self, entering: Array, projections: Sequence[Projection], norm: RMSNorm | None) -> list[Array]:
        return projected(
            entering,
            projections,
            norm=norm,
            of_rows=[self.cos, self.sin],
            name=ROTATION if len(projections) == 1 else QKV,
            room=self.room,
            interpret=self.interpret,
        )


def columns_of(out: int, head_dim: int) -> int:
    """Return the columns of a turn: of two heads, which fill the matrix unit, or of one if their number is odd."""
    return head_dim * math.gcd(out // head_dim, 2)


def _unchanged(parts: Sequence[Array], *_: Sequence[Array]) -> Array:
    return parts[0]


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
