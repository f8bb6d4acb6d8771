"""The first half of a gated MLP on a TPU: norm, both products and the activation, and nothing between in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from model.layers.linear import ACTIVATIONS, RMSNorm, Weight, project, rms_norm
from model.layers.tpu.projection import COLUMNS, LARGE, Projection, Room, projected

GATE = "scoreline_gate"
"""The kernel's name."""


def columns_of(out: int) -> int:
    """Return the columns of a turn of the kernel's grid."""
    return math.gcd(out, COLUMNS)


def gated(
    hidden: Array,
    norm: RMSNorm | None,
    gate: Weight,
    up: Weight,
    activation: str,
    *,
    room: Room = LARGE,
    interpret: Any = False,
) -> Array:
    """See :data:`model.attention.contract.Gated`. It is bf16, as the product that takes it would round it anyway."""
    apply, out = ACTIVATIONS[activation], gate.shape[1]
    columns = columns_of(out)
    # Blocks of a kernel have whole registers of 128 columns, or all that there are.
    if gate.dtype != jnp.bfloat16 or (columns % 128 and columns != out):
        entering = hidden if norm is None else rms_norm(hidden, *norm)
        return apply(project(entering, gate[...])) * project(entering, up[...])

    def finish(parts: Sequence[Array], *_: Any) -> Array:
        return apply(parts[0]) * parts[1]

    entering = hidden if norm is not None else hidden.astype(jnp.bfloat16)
    both = Projection([gate, up], finish, columns)
    (found,) = projected(entering, [both], norm=norm, name=GATE, room=room, interpret=interpret)
    return found
