"""Heads: from final hidden states to scores of labels."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from model.architecture.decoder import Norm
from model.linear import project
from scoring.layout import Head

_COLUMNS = 128
"""Columns of a kernel that are read for one of them: those that a TPU's memory holds together. To gather single ones,
its compiler would transpose the whole kernel.
"""


def lm_head(
    head: Head, norm_graph: nnx.GraphDef[Norm], *, as_rows: bool, by_tiles: bool = False
) -> Callable[..., tuple[Array, ...]]:
    """(norm weight, kernel, hidden [R, width], labels int32 [M]) -> label logits, float32 [R, M].

    With :attr:`Head.LOGPROBS`, the second output is the labels' log-probabilities over the whole vocabulary. Without,
    only the labels' part of the kernel is read. hidden: before the final norm; kernel: [width, vocabulary], or its
    transpose with ``as_rows``. by_tiles: columns of the kernel are read as a TPU's memory holds them; else gathered.
    """

    def program(weight: Array, kernel: Array, hidden: Array, labels: Array) -> tuple[Array, ...]:
        norm: Norm = nnx.merge(norm_graph, nnx.State({"weight": nnx.Param(weight)}))
        if head is Head.LOGITS:
            if by_tiles and not as_rows:
                return (project(norm(hidden), _rows_by_tiles(kernel, labels), transposed=True),)
            of_labels = jnp.take(kernel, labels, axis=0 if as_rows else 1)
            return (project(norm(hidden), of_labels, transposed=as_rows),)
        logits = project(norm(hidden), kernel, transposed=as_rows)
        label_logits = jnp.take(logits, labels, axis=1)
        return label_logits, label_logits - jax.nn.logsumexp(logits, axis=1, keepdims=True)

    return program


def _rows_by_tiles(kernel: Array, labels: Array) -> Array:
    """Return columns of a kernel as rows: [M, width]."""
    width, vocabulary = kernel.shape
    columns = min(_COLUMNS, vocabulary)

    def row(label: Array) -> Array:
        begin = jnp.minimum(label // columns * columns, vocabulary - columns)
        near = lax.dynamic_slice(kernel, (0, begin), (width, columns))
        wanted = jnp.arange(columns, dtype=labels.dtype) == label - begin
        return jnp.sum(jnp.where(wanted, near, 0), axis=1, dtype=kernel.dtype)  # the sum of one number and zeros

    rows: Array = lax.map(row, labels)
    return rows
