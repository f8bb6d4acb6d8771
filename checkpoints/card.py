"""What everybody but the accelerator needs to know of a served model."""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A served model, as API and worker describe it to each other.

    context_length: longest sequence in tokens; vocabulary: ids below it are tokens (added tokens included, padding
    rows of the head excluded); delimiter: the token id of delimiter mode, or None.
    """

    name: str
    context_length: int
    vocabulary: int
    tokenizer_fingerprint: str
    delimiter: int | None = None

    def differences(self, other: ModelCard) -> tuple[str, ...]:
        """How another card of this model differs, in lines for a person: which value here, which there."""
        lines = []
        if self.tokenizer_fingerprint != other.tokenizer_fingerprint:
            here, there = shorten(self.tokenizer_fingerprint), shorten(other.tokenizer_fingerprint)
            lines.append(f"tokenizer: {here} here, {there} there")
        if self.vocabulary != other.vocabulary:
            lines.append(f"vocabulary: {self.vocabulary} tokens here, {other.vocabulary} there")
        if self.context_length != other.context_length:
            lines.append(f"context: {self.context_length} tokens here, {other.context_length} there")
        if self.delimiter != other.delimiter:
            lines.append(f"delimiter: {_or_none(self.delimiter)} here, {_or_none(other.delimiter)} there")
        return tuple(lines)


def shorten(fingerprint: str) -> str:
    """As much of a fingerprint as a person compares."""
    return fingerprint[:_SHOWN_CHARACTERS]


def _or_none(token: int | None) -> str:
    return "none" if token is None else str(token)
