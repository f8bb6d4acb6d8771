"""The facts about a served model that API and workers compare, and that requests are checked against."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from checkpoints.classification import Classes

_SHOWN_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A served model, as API and workers describe it to each other."""

    name: str
    context_length: int  # longest sequence, in tokens
    vocabulary: int  # ids below this are tokens; added tokens count, padding rows of the head do not
    tokenizer_fingerprint: str  # of all that decides what token ids and labels mean: with classes, their names as well
    delimiter: int | None = None  # token id between query and items in delimiter mode
    classes: Classes | None = None  # None: the model gives probabilities of next tokens
    version: int | None = None  # of a model of the catalogue (jobs.catalogue); None: the environment describes it

    @property
    def work_key(self) -> str:
        """What chunks and workers must have in common, besides the model's name, for the worker to score the chunk.

        It is the tokenizer's fingerprint. For a model of the catalogue it depends on the version as well, so that no
        worker scores what was accepted for another revision of the weights.
        """
        if self.version is None:
            return self.tokenizer_fingerprint
        return hashlib.sha256(f"{self.tokenizer_fingerprint} version {self.version}".encode()).hexdigest()

    def differences(self, other: ModelCard) -> tuple[str, ...]:
        """Return a line for each difference from another card of this model, with both values."""
        lines = []
        if self.tokenizer_fingerprint != other.tokenizer_fingerprint:
            here, there = shorten(self.tokenizer_fingerprint), shorten(other.tokenizer_fingerprint)
            lines.append(f"tokenizer or classes: {here} here, {there} there")
        if self.vocabulary != other.vocabulary:
            lines.append(f"vocabulary: {self.vocabulary} tokens here, {other.vocabulary} there")
        if self.context_length != other.context_length:
            lines.append(f"context: {self.context_length} tokens here, {other.context_length} there")
        if self.delimiter != other.delimiter:
            lines.append(f"delimiter: {_or_none(self.delimiter)} here, {_or_none(other.delimiter)} there")
        return tuple(lines)


def shorten(fingerprint: str) -> str:
    """Return the first characters of a fingerprint, which are enough for a person to compare."""
    return fingerprint[:_SHOWN_CHARACTERS]


def _or_none(token: int | None) -> str:
    return "none" if token is None else str(token)
