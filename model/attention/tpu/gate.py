"""The first half of a gated MLP on a TPU: both products and the activation, without what is between them in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from model.attention.tpu.projection import COLUMNS, projected
from model.layers.linear import ACTIVATIONS, Weight, project


def gated(entering: Array, gate: Weight, up: Weight, activation: str, *, interpret: Any = False) -> Array:
    """See :data:`model.attention.contract.Gated`. It is bf16, as the product that takes it would round it anyway."""
    apply, out = ACTIVATIONS[activation], gate.shape[1]
    columns = math.gcd(out, COLUMNS)
    # Blocks of a kernel have whole registers of 128 columns, or all that there are.
    if gate.dtype != jnp.bfloat16 or (columns % 128 and columns != out):
        return apply(project(entering, gate[...])) * project(entering, up[...])

    def finish(parts: Sequence[Array], *_: Any) -> Array:
        return apply(parts[0]) * parts[1]

    entering = entering.astype(jnp.bfloat16)
    return projected(entering, [gate, up], finish, columns=columns, name="scoreline_gate", interpret=interpret)
