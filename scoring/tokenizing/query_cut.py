"""Find where a query may be cut, so that its head need not be tokenized again with every item.

A cut is safe if tokenizing head and tail separately gives the tokens of the whole, whatever item follows the tail.
docs/tokenization.md lists the tokenizers whose queries are cut, and shows why the cuts found here are safe.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TO_SMALL = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_FROM_CAPITAL = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

KNOWN_PATTERNS = frozenset(
    {
        _GPT2,
        # Qwen2, Qwen3
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        # Llama 3
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        # Qwen3.5
        _CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        # Mistral Nemo and later (tekken)
        f"{_TO_SMALL}|{_FROM_CAPITAL}" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        # gpt-oss (o200k)
        f"{_TO_SMALL}{_CONTRACTIONS}?|{_FROM_CAPITAL}{_CONTRACTIONS}?"
        + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    }
)
"""The regular expressions for which the two facts in docs/tokenization.md were checked by hand."""

_LETTER = r"[A-Za-z\u3042-\u3093\u30a2-\u30f3\u4e00-\u9fa5]"
_CUT = re.compile(rf"(?<=\S) |(?<={_LETTER})[\n.,:;!?、。，：；！？]")
_LAST_CUT = re.compile(rf"(?s).*(?:{_CUT.pattern})")

_SEARCHED = 2**12
"""Characters in which one call searches for a cut. A search holds the interpreter's lock, so it must be short."""

PIECE_CHARACTERS = 2**14
"""About how many characters of a query are encoded at a time, where it can be cut."""


@dataclass(frozen=True, slots=True)
class QueryCutter:
    """Finds cuts for one tokenizer."""

    leading_ids: tuple[int, ...] | None  # ids of the special tokens put before a text; None: no query may be cut

    @classmethod
    def for_tokenizer(cls, definition: Mapping[str, Any]) -> QueryCutter:
        """Return the cutter for a tokenizer, given as the ``tokenizers`` library serialises it."""
        known = (
            _is_nfc_or_nothing(definition["normalizer"])
            and _split_pattern(definition["pre_tokenizer"]) in KNOWN_PATTERNS
            and definition["model"]["type"] == "BPE"
            and not definition["model"]["dropout"]
            and not any(_may_span_a_cut(token) for token in definition["added_tokens"])
        )
        return cls(_leading_ids(definition["post_processor"]) if known else None)

    def cut(self, query: str) -> int | None:
        """Return the index of the tail's first character, or None if no safe cut was found."""
        return None if self.leading_ids is None else _last_cut(query, 0, len(query))

    def first_cut(self, text: str) -> int | None:
        """Return the index of the first character behind which nothing depends on what stands before the text, or None.

        Such a cut is safe whatever the text follows, as the other cuts are whatever follows the query.
        """
        if self.leading_ids is None:
            return None
        for start in range(0, len(text), _SEARCHED):
            if (match := _CUT.search(text, start, start + _SEARCHED)) is not None:
                return match.start()
        return None

    def pieces(self, head: str) -> Iterator[str]:
        """Split the head of a query that was cut, so that the tokens of the pieces are the tokens of the head."""
        start, end = 0, PIECE_CHARACTERS
        while end < len(head):
            cut = _last_cut(head, max(start + 1, end - PIECE_CHARACTERS), end)
            if cut is not None:
                yield head[start:cut]
                start = end = cut
            end += PIECE_CHARACTERS
        yield head[start:]


def _last_cut(query: str, start: int, end: int) -> int | None:
    """Return the last index in ``range(start, end)`` at which the query may be cut, or None. It searches backwards."""
    for stop in range(end, start, -_SEARCHED):
        if (match := _LAST_CUT.match(query, max(start, stop - _SEARCHED), stop)) is not None:
            return match.end() - 1
    return None


def _is_nfc_or_nothing(normalizer: Mapping[str, Any] | None) -> bool:
    if normalizer is None or normalizer["type"] == "NFC":
        return True
    return normalizer["type"] == "Sequence" and all(map(_is_nfc_or_nothing, normalizer["normalizers"]))


def _split_pattern(pre_tokenizer: Mapping[str, Any] | None) -> str | None:
    """Return the regular expression that alone decides where pieces end, or None if there is no such expression."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return _GPT2
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
    return None


def _may_span_a_cut(token: Mapping[str, Any]) -> bool:
    """Whether a match of an added token may lie on both sides of a cut."""
    if token["lstrip"] or token["rstrip"] or token["single_word"]:
        return True
    # Every cut in the content is still there after NFC. So this covers both the tokens that are matched before
    # normalisation and those that are matched after it.
    return _CUT.search(unicodedata.normalize("NFC", token["content"])) is not None


def _leading_ids(post_processor: Mapping[str, Any] | None) -> tuple[int, ...] | None:
    """Return the ids put before a text, or None if the post-processor does anything else."""
    match post_processor:
        case None | {"type": "ByteLevel"}:
            return ()
        case {"type": "TemplateProcessing", "single": [*leading, {"Sequence": {"id": "A"}}]}:
            if all("SpecialToken" in piece for piece in leading):
                special = post_processor["special_tokens"]
                return tuple(i for piece in leading for i in special[piece["SpecialToken"]["id"]]["ids"])
        case {"type": "Sequence", "processors": processors}:
            parts = [_leading_ids(processor) for processor in processors]
            added = [part for part in parts if part != ()]
            return added[0] if len(added) == 1 else () if not added else None
    return None
