"""Count what a tokenizer is given to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tokenizers import Encoding, Tokenizer

from scoring.tokenizing.tokenization import _SHORT_CHARACTERS, TextTokenizer


class CountingBackend:
    """A tokenizer of the ``tokenizers`` library that adds up the characters it encodes."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self.characters = 0  # in all texts so far
        self.batches: list[int] = []  # the characters of each call so far, which takes many long texts or one short one

    def encode_batch_fast(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Encoding]:
        self.batches.append(sum(map(len, texts)))
        self.characters += self.batches[-1]
        return self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoding:
        assert len(text) <= _SHORT_CHARACTERS, "Tokenizer.encode holds the interpreter's lock while it encodes"
        self.batches.append(len(text))
        self.characters += len(text)
        return self._backend.encode(text, add_special_tokens=add_special_tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def counted(tokenizer: TextTokenizer) -> tuple[TextTokenizer, CountingBackend]:
    """Return a copy of a tokenizer, and the counter of its work."""
    copy = TextTokenizer(tokenizer._backend)
    counter = CountingBackend(copy._backend)
    copy._backend = cast("Tokenizer", counter)
    return copy, counter
