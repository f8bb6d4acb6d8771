r"""Where a query may be cut so that its head need not be encoded again with every item.

A cut ``c`` is *safe* when, for every item, ``encode(query + item) == encode(query[:c]) ++ encode(query[c:] + item)``,
special tokens aside. Then ``encode(query[:c])`` is computed once.

**The tokenizers this is claimed for.** A tokenizer is a pipeline: split off added tokens, normalise, split off the
added tokens that are matched after normalisation, pre-tokenise by a regular expression (left to right, matches
isolated), map each piece to ids by itself, add special tokens around the whole. :meth:`QueryCutter.for_tokenizer` takes
it only if

- the normaliser is absent or NFC;
- the pre-tokeniser is one of :data:`KNOWN_PATTERNS` (GPT-2's, Llama 3's, Qwen2's and Qwen3's, Qwen3.5's, Mistral's
  tekken), over bytes, without a prefix space;
- the model is BPE without dropout, so each piece maps to ids by itself, the same way every time;
- the post-processor adds nothing, or fixed tokens before the text;
- no added token absorbs whitespace (``lstrip``, ``rstrip``), asks for word boundaries (``single_word``), or contains a
  cut itself, before or after normalisation.

Everything else gets no cut, and is encoded the plain way.

**The cuts.** Between two neighbouring characters ``x y`` of the query, ``y`` being the tail's first, where either

1. ``x`` is no whitespace and ``y`` is the ASCII space; or
2. ``x`` is an ASCII letter, a kana letter or a CJK ideograph of Unicode 1.1, and ``y`` is a line feed or punctuation
   out of a fixed list.

The last cut of the query is the one used.

**Why they are safe.** One step of the pipeline at a time:

- *Added tokens.* The search is leftmost-longest without overlap. No match covers both ``x`` and ``y``, for then the
  added token would contain a cut. So each match lies on one side; those left of the cut are found before any on its
  right can matter, and after the cut the search starts afresh, as it does on the tail alone.
- *Normalisation.* Every ``y`` is a starter that NFC leaves alone and composes with nothing, before it or behind it
  (``=``, ``<`` and ``>``, which do with U+0338, are not in the list). Hence ``NFC(text) == NFC(text[:c]) ++
  NFC(text[c:])``, and the right part still begins with ``y``. The left part still ends as case 1 or 2 asks: NFC makes
  no whitespace of anything else, and in case 2 ``x`` is stable and composes with nothing before it.
- *Pre-tokenisation.* Two facts about every pattern listed. (a) No alternative matches a text that contains ``x y``. In
  case 1, what consumes anything but whitespace consumes no ASCII space after it. In case 2, a letter is consumed only
  by runs of letters (and marks), which end before ``y``, and by contractions, which are an apostrophe and letters. So
  a match that starts before the cut ends at or before it, and since matches follow each other without gaps, one ends
  exactly at the cut. (b) That match does not depend on what follows: greedy runs stop at the cut whether ``y`` or the
  end of the text stands there, and the one look-ahead, ``\s+(?!\S)``, is asked only within and at the end of a run of
  whitespace, which ``x`` is not. Where a run has to give characters back (tekken tells capitals from small letters, and
  asks for a small one at the end of its first alternative), how many depends on the run alone: it is a run of letters
  and marks, which ends at the cut in either case, since neither ``y`` nor the end of the text is one.
  Right of the cut nothing looks behind, so the matches are those of the tail alone.
- *Model and post-processor.* Each piece maps to ids by itself; special tokens come before everything.

Python's idea of whitespace (``str.isspace``) contains the regular expression engine's, so ``x`` is never taken for more
than it is; the characters of case 2 are letters and punctuation in every version of Unicode an engine may have.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
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
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    }
)
"""The split expressions for which the facts (a) and (b) above have been checked, by hand."""

_LETTER = r"[A-Za-z\u3042-\u3093\u30a2-\u30f3\u4e00-\u9fa5]"
_CUT = re.compile(rf"(?<=\S) |(?<={_LETTER})[\n.,:;!?、。，：；！？]")
_LAST_CUT = re.compile(rf"(?s).*(?:{_CUT.pattern})")


@dataclass(frozen=True, slots=True)
class QueryCutter:
    """Finds cuts for one tokenizer. leading: the special tokens it puts before a text; None: it allows no cuts."""

    leading: tuple[int, ...] | None

    @classmethod
    def for_tokenizer(cls, definition: Mapping[str, Any]) -> QueryCutter:
        """definition: the tokenizer as the ``tokenizers`` library serialises it."""
        known = (
            _commutes_with_cuts(definition["normalizer"])
            and _split_pattern(definition["pre_tokenizer"]) in KNOWN_PATTERNS
            and definition["model"]["type"] == "BPE"
            and not definition["model"]["dropout"]
            and not any(_may_straddle(token) for token in definition["added_tokens"])
        )
        return cls(_leading_ids(definition["post_processor"]) if known else None)

    @property
    def leading_ids(self) -> list[int]:
        """The special tokens put before a text."""
        return list(self.leading or ())

    def cut(self, query: str) -> int | None:
        """The index of the tail's first character, or None where the query must be encoded whole with each item."""
        if self.leading is None or (match := _LAST_CUT.match(query)) is None:
            return None
        return match.end() - 1


def _commutes_with_cuts(normalizer: Mapping[str, Any] | None) -> bool:
    if normalizer is None or normalizer["type"] == "NFC":
        return True
    return normalizer["type"] == "Sequence" and all(map(_commutes_with_cuts, normalizer["normalizers"]))


def _split_pattern(pre_tokenizer: Mapping[str, Any] | None) -> str | None:
    """The one regular expression that decides where pieces end, or None where that is not the whole story."""
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


def _may_straddle(token: Mapping[str, Any]) -> bool:
    if token["lstrip"] or token["rstrip"] or token["single_word"]:
        return True
    # A cut in the content as written is still there after NFC, so this covers tokens matched either way.
    return _CUT.search(unicodedata.normalize("NFC", token["content"])) is not None


def _leading_ids(post_processor: Mapping[str, Any] | None) -> tuple[int, ...] | None:
    """The ids put before a text, or None where anything else is done to it."""
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
