"""Products of activations with weights: full precision sums, and bits that do not depend on the company.

A product of few rows takes another path in the compiler than one of many, and sums in another order. So fewer rows than
:data:`ROW_FLOOR` are padded up to it: above that floor a row's bits do not depend on how many rows there are, which
``tests/model/test_row_independence.py`` holds for the shapes served.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

ROW_FLOOR = 64
"""Rows that every product has at least."""


def accumulation_precision(dtype: jnp.dtype) -> lax.Precision:
    """Float32 operands are multiplied in full float32 on every backend; bf16 needs no more than one pass."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT


def project(rows: Array, kernel: Array) -> Array:
    """``rows @ kernel``, summed and returned in float32.

    rows: [..., in], cast to the kernel's dtype; kernel: [in, out], not transposed: that is the fast way round on a
    CPU. Returns float32 [..., out].
    """
    flat = rows.reshape(-1, rows.shape[-1]).astype(kernel.dtype)
    count = flat.shape[0]
    if count < ROW_FLOOR:
        flat = jnp.pad(flat, ((0, ROW_FLOOR - count), (0, 0)))
    out = jnp.matmul(flat, kernel, precision=accumulation_precision(kernel.dtype), preferred_element_type=jnp.float32)[
        :count
    ]
    return out.reshape(*rows.shape[:-1], kernel.shape[-1])


def rms_norm(values: Array, weight: Array, epsilon: float) -> Array:
    """Root-mean-square norm over the last axis, in float32 throughout."""
    values = values.astype(jnp.float32)
    mean_square = jnp.mean(values * values, axis=-1, keepdims=True)
    return values * lax.rsqrt(mean_square + epsilon) * weight.astype(jnp.float32)
