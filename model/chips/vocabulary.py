"""The vocabulary as programs see it: whole, or divided among chips.

A program of several chips never has the logits of the whole vocabulary: each chip has those of its own tokens. What
leaves a chip is one number for each label or target, the log-sum-exp of its logits, the highest of them, and its token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from model.architecture.projections import Embedding
from model.chips.axes import TENSOR
from model.chips.mesh import total


class Vocabulary(Protocol):
    """What of the vocabulary the arrays of a program are about."""

    def embed(self, embedding: Embedding, tokens: Array) -> Array:
        """Return the vectors of tokens [T]: float32 [T, width]."""

    def pick(self, ids: Array, values_of: Callable[[Array], Array]) -> Array:
        """Return one number for each of some token ids, float32 [R, M].

        ids: int32 [M] or [R, M]; values_of: takes the numbers of tokens among those that the chip has.
        """

    def log_sum_exp(self, logits: Array) -> Array:
        """Return the log-sum-exp over the vocabulary, [R, 1]; logits: [R, tokens that the chip has]."""

    def highest(self, logits: Array) -> Array:
        """Return the highest logit of the vocabulary, [R, 1]."""

    def most_probable(self, logits: Array) -> Array:
        """Return the token with the highest logit, int32 [R, 1]; of several such tokens, the lowest id."""


@dataclass(frozen=True, slots=True)
class OnOneChip:
    """The whole vocabulary."""

    def embed(self, embedding: Embedding, tokens: Array) -> Array:
        """See :class:`Vocabulary`."""
        return embedding(tokens)

    def pick(self, ids: Array, values_of: Callable[[Array], Array]) -> Array:
        """See :class:`Vocabulary`."""
        return values_of(ids)

    def log_sum_exp(self, logits: Array) -> Array:
        """See :class:`Vocabulary`."""
        return jax.nn.logsumexp(logits, axis=1, keepdims=True)

    def highest(self, logits: Array) -> Array:
        """See :class:`Vocabulary`."""
        return jnp.max(logits, axis=1, keepdims=True)

    def most_probable(self, logits: Array) -> Array:
        """See :class:`Vocabulary`."""
        return jnp.argmax(logits, axis=1, keepdims=True).astype(jnp.int32)


@dataclass(frozen=True, slots=True)
class OverChips:
    """The vocabulary of a program of several chips, of which each has as many tokens, in order."""

    own: int  # tokens of a chip

    def embed(self, embedding: Embedding, tokens: Array) -> Array:
        """See :class:`Vocabulary`. All chips but one add zeros."""
        numbers, here = self._here(tokens)
        return total(jnp.where(here[:, None], embedding(numbers), 0.0))

    def pick(self, ids: Array, values_of: Callable[[Array], Array]) -> Array:
        """See :class:`Vocabulary`. All chips but one add zeros."""
        numbers, here = self._here(ids)
        return total(jnp.where(here, values_of(numbers), 0.0))

    def log_sum_exp(self, logits: Array) -> Array:
        """See :class:`Vocabulary`."""
        of_chips = lax.all_gather(jax.nn.logsumexp(logits, axis=1, keepdims=True), TENSOR)
        return jax.nn.logsumexp(of_chips, axis=0)

    def highest(self, logits: Array) -> Array:
        """See :class:`Vocabulary`."""
        found: Array = lax.pmax(jnp.max(logits, axis=1, keepdims=True), TENSOR)  # type: ignore[no-untyped-call]
        return found

    def most_probable(self, logits: Array) -> Array:
        """See :class:`Vocabulary`. A chip with a lower highest logit offers a number that is no token."""
        own = jnp.argmax(logits, axis=1, keepdims=True).astype(jnp.int32) + lax.axis_index(TENSOR) * self.own
        is_highest = jnp.max(logits, axis=1, keepdims=True) == self.highest(logits)
        offered = jnp.where(is_highest, own, np.iinfo(np.int32).max)
        found: Array = lax.pmin(offered, TENSOR)  # type: ignore[no-untyped-call]
        return found

    def _here(self, ids: Array) -> tuple[Array, Array]:
        """Return the numbers of tokens among those of this chip, 0 for others, and whether it has them."""
        numbers = ids - lax.axis_index(TENSOR) * self.own
        here = (numbers >= 0) & (numbers < self.own)
        return jnp.where(here, numbers, 0), here
