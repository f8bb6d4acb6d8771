"""Products of activations with weights, and the norm between them: every sum is in float32."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax


def accumulation_precision(dtype: jnp.dtype) -> lax.Precision:
    """Float32 operands are multiplied in full float32 on every backend; bf16 needs no more than one pass."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT


def project(rows: Array, kernel: Array) -> Array:
    """``rows @ kernel``, summed and returned in float32.

    rows: [..., in], cast to the kernel's dtype; kernel: [in, out], not transposed: that is the fast way round on a
    CPU. Returns float32 [..., out].
    """
    flat = rows.reshape(-1, rows.shape[-1]).astype(kernel.dtype)
    precision = accumulation_precision(kernel.dtype)
    out = jnp.matmul(flat, kernel, precision=precision, preferred_element_type=jnp.float32)
    return out.reshape(*rows.shape[:-1], kernel.shape[-1])


def rms_norm(values: Array, weight: Array, epsilon: float) -> Array:
    """Root-mean-square norm over the last axis, in float32 throughout."""
    values = values.astype(jnp.float32)
    mean_square = jnp.mean(values * values, axis=-1, keepdims=True)
    return values * lax.rsqrt(mean_square + epsilon) * weight.astype(jnp.float32)


def as_bits(array: Array) -> Array:
    """bf16 as the integers of its bits; anything else as it is.

    For what programs slice: the CPU compiler takes a slice of bf16 by way of float32, and converts the whole array on
    every call for it.
    """
    return lax.bitcast_convert_type(array, jnp.uint16) if array.dtype == jnp.bfloat16 else array


def from_bits(array: Array) -> Array:
    """What :func:`as_bits` was given."""
    return lax.bitcast_convert_type(array, jnp.bfloat16) if array.dtype == jnp.uint16 else array
