"""Products of activations with weights, and the norm between them. Every sum is in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"silu": jax.nn.silu, "gelu_pytorch_tanh": jax.nn.gelu}
"""Of the gate of an MLP, by HuggingFace's names."""


def accumulation_precision(dtype: jnp.dtype) -> lax.Precision:
    """Return the precision of products: full float32 for float32 operands on every backend, one pass for bf16."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT


@dataclass(frozen=True, slots=True, eq=False)
class OfStack:
    """The weight of one layer in a stack of all layers, which is sliced only where it is read.

    A kernel may take the stack and the number instead, because compilers write a copy of what is sliced for a kernel.
    """

    stack: Array  # [layers, ...]
    number: Array  # int32 []

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the layer's own."""
        return self.stack.shape[1:]

    @property
    def dtype(self) -> Any:
        """Of the weight."""
        return self.stack.dtype

    def __getitem__(self, index: Any) -> Array:
        own: Array = lax.dynamic_index_in_dim(self.stack, self.number, keepdims=False)
        return own if index is ... else own[index]


Weight = Array | OfStack


def capped(values: Array, cap: float | None) -> Array:
    """Return values that are kept between a number and its negative by a hyperbolic tangent; None: as they are."""
    return values if cap is None else cap * jnp.tanh(values / cap)


FEWEST_COLUMNS = 16
"""Columns of a product below which XLA, on some CPUs, computes 64 rows in another way than 256 (jaxlib 0.10, AVX2)."""


def project(rows: Array, kernel: Array, *, transposed: bool = False) -> Array:
    """Return ``rows @ kernel``, float32 [..., out], summed in float32.

    rows: [..., in], cast to the kernel's dtype; kernel: [in, out], or [out, in] if ``transposed``. On a CPU, a kernel
    that is not transposed is faster.
    """
    kernel = kernel.T if transposed else kernel  # compilers make this a part of the product
    columns = kernel.shape[-1]
    if columns < FEWEST_COLUMNS:
        kernel = jnp.pad(kernel, ((0, 0), (0, FEWEST_COLUMNS - columns)))
    flat = rows.reshape(-1, rows.shape[-1]).astype(kernel.dtype)
    precision = accumulation_precision(kernel.dtype)
    out = jnp.matmul(flat, kernel, precision=precision, preferred_element_type=jnp.float32)
    return out[:, :columns].reshape(*rows.shape[:-1], columns)


def alone(part: Array) -> Array:
    """Return what one chip computed, where there are no others whose parts must be added."""
    return part


LONG_ROW = 4_096
"""Numbers of a token from which on XLA, on a CPU, sums a row in another order if there are more rows: in steps of 256
tokens, arrays of 2^20 numbers (jaxlib 0.10)."""


def sum_of_squares(values: Array) -> Array:
    """Return the sum over the last axis, [..., 1], whose bits do not depend on the number of rows; values: [T, ...]."""
    squares = values * values
    if math.prod(squares.shape[1:]) < LONG_ROW:
        return jnp.sum(squares, axis=-1, keepdims=True)

    def as_product(squares: Array) -> Array:
        return jnp.matmul(squares, jnp.ones((squares.shape[-1], 1), jnp.float32), precision=lax.Precision.HIGHEST)

    found: Array = lax.platform_dependent(
        squares, cpu=as_product, default=lambda squares: jnp.sum(squares, axis=-1, keepdims=True)
    )
    return found


def sum_by_halves(values: Array) -> Array:
    """Return the sum over the last axis of a few numbers, [..., 1], in one order for any number of rows.

    XLA sums 128 numbers of a row in other orders in 64 rows and in 256, on a CPU, as a softmax does (jaxlib 0.10).
    """
    size = values.shape[-1]
    while size > 1:
        values = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, size % 2)])
        size = (size + 1) // 2
        values = values[..., :size] + values[..., size:]
    return values


class RMSNorm(NamedTuple):
    """A root-mean-square norm (arXiv:1910.07467)."""

    weight: Array  # [size], what normed values are multiplied by
    epsilon: float


def rms_norm(values: Array, weight: Array, epsilon: float) -> Array:
    """Return the root-mean-square norm over the last axis, in float32 throughout; values: [T, ...]."""
    values = values.astype(jnp.float32)
    mean_square = sum_of_squares(values) / values.shape[-1]
    return values * lax.rsqrt(mean_square + epsilon) * weight.astype(jnp.float32)


def scaled(values: Array, scale: float) -> Array:
    """Return values times a factor. A factor of 1 leaves the program as it is."""
    return values if scale == 1.0 else values * jnp.float32(scale)


def to_pool_dtype(array: Array, dtype: DTypeLike) -> Array:
    """Return an array as a pool holds it: unchanged, or the bits of bf16 as uint16.

    dtype: see :meth:`model.platforms.Platform.pool_dtype`.
    """
    return lax.bitcast_convert_type(array, dtype) if array.dtype != dtype else array


def from_pool_dtype(array: Array) -> Array:
    """Return the argument of :func:`to_pool_dtype`."""
    return lax.bitcast_convert_type(array, jnp.bfloat16) if array.dtype == jnp.uint16 else array
