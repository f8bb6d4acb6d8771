"""The options of a scoring request: its priority, and the numbers that it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scoring.layout import Head


class Priority(StrEnum):
    """How urgent a job is: decides how much slack is added to its accept time to get the time it is due."""

    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BULK = "bulk"


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """The options that change a request's output or its sequences."""

    apply_softmax: bool = False  # normalise the scores of each item over the labels
    return_logprobs: bool = False
    return_logits: bool = False
    item_first: bool = False  # score item + query instead of query + item
    return_provenance: bool = False  # say what computed the scores
    temperature: float = 1.0  # of the softmax over the labels; the logits are divided by it
    label_mass: bool = False  # compute the labels' share of the whole vocabulary even if no score needs it

    @property
    def head(self) -> Head:
        """The cheapest head that computes everything that was asked for."""
        needs_vocabulary = self.label_mass or self.return_logprobs or not self.apply_softmax
        return Head.LOGPROBS if needs_vocabulary else Head.LOGITS
