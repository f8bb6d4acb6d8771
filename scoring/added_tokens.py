"""The added tokens of a tokenizer, such as ``<|im_start|>``: finding them in a text, and a tokenizer without them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """The added tokens of one tokenizer."""

    ids: Mapping[str, int]  # by the text of each
    _pattern: re.Pattern[str] | None  # None if there are none

    @classmethod
    def of(cls, definition: Mapping[str, Any]) -> AddedTokens:
        """Return those of a tokenizer, given as the ``tokenizers`` library serialises it."""
        tokens = [token for token in definition["added_tokens"] if token["content"]]
        # The longest of those that begin at the same place is found, as the tokenizer does it.
        tokens.sort(key=lambda token: -len(token["content"]))
        pattern = "|".join(map(_pattern, tokens))
        ids = {token["content"]: int(token["id"]) for token in tokens}
        return cls(ids, re.compile(pattern) if tokens else None)

    def split(self, text: str) -> list[str | int]:
        """Return the parts of a text: the ids of the added tokens in it, and the texts between them."""
        if self._pattern is None:
            return [text] if text else []
        parts: list[str | int] = []
        start = 0
        for match in self._pattern.finditer(text):
            content = match[0] if match[0] in self.ids else match[0].strip()
            parts += [text[start : match.start()], self.ids[content]]
            start = match.end()
        return [part for part in (*parts, text[start:]) if part != ""]


def without_added_tokens(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of a tokenizer to which all text is ordinary text, and that puts nothing around a text."""
    special = {token["content"] for token in definition["added_tokens"] if token["special"]}
    model = _without_words(definition["model"], special)
    return {**definition, "model": model, "added_tokens": [], "post_processor": None}


def _without_words(model: Mapping[str, Any], words: set[str]) -> Mapping[str, Any]:
    """Return a tokenizer's model with the same ids that finds none of these words in a text.

    Many vocabularies hold the special tokens, too. A model that looks for the words of its vocabulary, as Unigram does,
    would find them in any text.
    """
    hidden = words - {model.get("unk_token")}
    if hidden.isdisjoint(piece[0] if isinstance(piece, list) else piece for piece in model["vocab"]):
        return model
    # No client can know these names.
    names = {word: f"{secrets.token_hex(16)}{word}" for word in hidden}
    if isinstance(model["vocab"], list):  # Unigram: pieces with their scores
        return {**model, "vocab": [[names.get(piece, piece), score] for piece, score in model["vocab"]]}
    changed = {**model, "vocab": {names.get(piece, piece): number for piece, number in model["vocab"].items()}}
    if "merges" in model:
        changed["merges"] = [pair for pair in model["merges"] if hidden.isdisjoint((*pair, "".join(pair)))]
    return changed


def _pattern(token: Mapping[str, Any]) -> str:
    """Return the expression that finds a token, with the whitespace that it absorbs."""
    found = re.escape(str(token["content"]))
    if token["single_word"]:
        found = rf"(?<!\w){found}(?!\w)"
    return (r"\s*" if token["lstrip"] else "") + found + (r"\s*" if token["rstrip"] else "")
