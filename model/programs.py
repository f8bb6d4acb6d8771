"""The programs that run on the device, as functions of flat arguments: what is compiled ahead of time.

Weights are arguments and never constants of a program, which would be copied and folded into it. Calling an executable
on a flat tuple of arrays costs a tenth of what calling it on a tree of modules costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from model.decoder import Decoder
from model.product import project
from scoring.layout import Head

Program = Callable[..., Array | tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class Body:
    """The decoder below its head: ``run(*weights, tokens, last)`` gives the hidden states at the scoring positions."""

    run: Program
    weights: tuple[Array, ...]


def body(decoder: Decoder) -> Body:
    """Take a decoder apart into a function and its flat arguments."""
    graph, state = nnx.split(decoder.model)
    leaves, tree = jax.tree_util.tree_flatten_with_path(state)

    def run(*arguments: Array) -> Array:
        *weights, tokens, last = arguments
        hidden: Array = nnx.merge(graph, jax.tree.unflatten(tree, weights)).at_scoring_positions(tokens, last)
        return hidden

    return Body(run, tuple(_bits(leaf) if path[0].key == "layers" else leaf for path, leaf in leaves))


def logprobs_head(kernel: Array, hidden: Array, labels: Array) -> tuple[Array, Array]:
    """Label logits and log-probabilities over the full logit width.

    kernel: [width, vocabulary]; hidden: float32 [R, width]; labels: int32 [M]. Returns two float32 [R, M].
    """
    logits = project(hidden, kernel)
    label_logits = jnp.take(logits, labels, axis=1)
    return label_logits, label_logits - jax.nn.logsumexp(logits, axis=1, keepdims=True)


def logits_head(kernel: Array, hidden: Array, labels: Array) -> tuple[Array]:
    """Label logits alone: reads the labels' columns of the kernel and no others. Shapes as for the other head."""
    return (project(hidden, jnp.take(kernel, labels, axis=1)),)


HEADS: dict[Head, Program] = {Head.LOGPROBS: logprobs_head, Head.LOGITS: logits_head}


def _bits(stack: Array) -> Array:
    """A bf16 stack as uint16: see :func:`model.decoder.Body`. The memory is shared where the device allows it."""
    return jax.device_put(np.asarray(stack).view(np.uint16)) if stack.dtype == jnp.bfloat16 else stack
