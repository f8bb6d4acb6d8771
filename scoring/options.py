"""What a request asks to be told of each row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scoring.layout import Head


class Priority(StrEnum):
    """A class of urgency: how much slack is added to a job's accept time to order it among the others."""

    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BULK = "bulk"


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """The options of a scoring request that shape its output or its sequences."""

    apply_softmax: bool = False
    return_logprobs: bool = False
    return_logits: bool = False
    item_first: bool = False

    @property
    def head(self) -> Head:
        """The cheapest head that yields all that was asked."""
        needs_vocabulary = self.return_logprobs or not self.apply_softmax
        return Head.LOGPROBS if needs_vocabulary else Head.LOGITS
