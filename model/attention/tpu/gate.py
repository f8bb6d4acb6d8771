"""The first half of a gated MLP on a TPU: both products and the activation, without what is between them in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from model.attention.tpu.projection import COLUMNS, projected
from model.linear import ACTIVATIONS, Weight, project


def gated(entering: Array, gate: Weight, up: Weight, activation: str, *, interpret: Any = False) -> Array:
    """See :data:`model.attention.contract.Gated`. It is bf16, as the product that takes it would round it anyway."""
    apply = ACTIVATIONS[activation]
    if gate.dtype != jnp.bfloat16:
        return apply(project(entering, gate[...])) * project(entering, up[...])

    def finish(parts: Sequence[Array], *_: Any) -> Array:
        return apply(parts[0]) * parts[1]

    columns = math.gcd(gate.shape[1], COLUMNS)
    entering = entering.astype(jnp.bfloat16)
    return projected(entering, [gate, up], finish, columns=columns, name="scoreline_gate", interpret=interpret)
