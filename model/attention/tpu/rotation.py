"""The norm and the rotation of queries and keys on a TPU, in one pass over what was projected.

XLA splits heads into halves and joins them again, in a layout with rows along lanes, which takes twice as long by the
compiler's estimate. Here a head is a row of registers, whose halves change places within it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from model.rotation import HeadNorm, RotaryEmbedding

ROWS = 128
"""Rows of a step of the grid, which are in fast memory at a time."""

TOGETHER = 64
"""Rows that are computed at a time: with their cosines and sines, they fit into registers."""


@dataclass(frozen=True, slots=True)
class TPURotation:
    """A :class:`model.rotation.Rotation` of rows [T, heads * D] by a kernel, to bf16."""

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
        """See :class:`model.rotation.Rotation`."""
        T, D = self.cos.shape
        rows = min(ROWS, T)
        assert jnp.dtype(dtype) == jnp.bfloat16
        assert head_dim == D
        wide = pl.BlockSpec((rows, projected.shape[1]), lambda part: (part, 0))
        one = pl.BlockSpec((rows, D), lambda part: (part, 0))
        arrays, specs = [projected, self.cos, self.sin], [wide, one, one]
        if norm is not None:
            arrays.append(norm.weight.astype(jnp.float32)[None])
            specs.append(pl.BlockSpec((1, D), lambda part: (0, 0)))
        rotated: Array = pl.pallas_call(
            functools.partial(_kernel, epsilon=None if norm is None else norm.epsilon),
            grid=(pl.cdiv(T, rows),),
            in_specs=specs,
            out_specs=wide,
            out_shape=jax.ShapeDtypeStruct(projected.shape, jnp.bfloat16),  # type: ignore[no-untyped-call]
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
            interpret=self.interpret,
            name="scoreline_rotation",
        )(*arrays)
        return rotated.reshape(T, -1, D)


def _kernel(projected: Any, cosines: Any, sines: Any, *refs: Any, epsilon: float | None) -> None:
    """Compute the rows of a step of the grid: ``refs`` are the norm's weight, if there is one, and the result."""
    *weights, out = refs
    (rows, width), D = projected.shape, cosines.shape[1]
    together = min(TOGETHER, rows)

    @pl.loop(0, rows // together)
    def some(number: Any) -> None:
        at = pl.ds(pl.multiple_of(number * together, together), together)
        cos, sin = cosines[at, :], sines[at, :]
        if weights:
            # The weights of a head are the same for all rows, so they are multiplied once for all heads.
            weight = weights[0][...]
            cos, sin = cos * weight, sin * pltpu.roll(weight, D // 2, 1)
        for begin in range(0, width, D):
            head = projected[at, begin : begin + D]
            rotated = head * cos + pltpu.roll(head, D // 2, 1) * sin
            if epsilon is not None:
                rotated *= lax.rsqrt(jnp.mean(head * head, axis=-1, keepdims=True) + epsilon)
            out[at, begin : begin + D] = rotated.astype(jnp.bfloat16)
