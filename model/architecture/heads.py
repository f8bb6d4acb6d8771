"""Heads: from final hidden states to scores of labels."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from model.architecture.decoder import Norm
from model.linear import project
from scoring.layout import Head


def lm_head(head: Head, norm_graph: nnx.GraphDef[Norm], *, as_rows: bool) -> Callable[..., tuple[Array, ...]]:
    """(norm weight, kernel, hidden [R, width], labels int32 [M]) -> label logits, float32 [R, M].

    With :attr:`Head.LOGPROBS`, the second output is the labels' log-probabilities over the whole vocabulary. Without,
    only the labels' part of the kernel is read. hidden: before the final norm; kernel: [width, vocabulary], or its
    transpose with ``as_rows``.
    """

    def program(weight: Array, kernel: Array, hidden: Array, labels: Array) -> tuple[Array, ...]:
        norm: Norm = nnx.merge(norm_graph, nnx.State({"weight": nnx.Param(weight)}))
        if head is Head.LOGITS:
            of_labels = jnp.take(kernel, labels, axis=0 if as_rows else 1)
            return (project(norm(hidden), of_labels, transposed=as_rows),)
        logits = project(norm(hidden), kernel, transposed=as_rows)
        label_logits = jnp.take(logits, labels, axis=1)
        return label_logits, label_logits - jax.nn.logsumexp(logits, axis=1, keepdims=True)

    return program
