"""What everybody but the accelerator needs to know of a served model."""

from __future__ import annotations

from dataclasses import dataclass


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
