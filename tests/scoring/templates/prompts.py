"""The texts of a prompt, and its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from hypothesis import assume, reject
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import chat_template_utils as reference

from scoring.layout import Rows
from scoring.templates.encoding import Prompt
from scoring.templates.wording import Place, Wording
from scoring.tokenizing.tokenization import TextTokenizer
from tests.packed_rows import whole_sequences

Texts = list[tuple[str, bool]]
"""Texts that are encoded together, each with whether a client has sent it."""


def texts_of(wording: Wording, query: str, item: str) -> list[Texts]:
    """Return the texts that are tokenized apart. An instruction that no client has sent is the template's own."""
    instruction = wording.instruction, wording.sent_characters > 0
    texts = {Place.INSTRUCTION: instruction, Place.QUERY: (query, True), Place.ITEM: (item, True)}
    joined = (*wording.query[:-1], (*wording.query[-1], *wording.item[0]), *wording.item[1:])
    return [[texts[part] if isinstance(part, Place) else (part, False) for part in piece] for piece in joined]


def text_of(wording: Wording, query: str, item: str) -> str:
    """Return the whole text of a prompt."""
    return "".join(text for texts in texts_of(wording, query, item) for text, _ in texts)


@cache
def in_transformers(tokenizer: TextTokenizer) -> PreTrainedTokenizerBase:
    """Return a tokenizer as transformers has it."""
    wrapped: PreTrainedTokenizerBase = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(tokenizer._backend.to_str())
    )
    return wrapped


def tokens_by_transformers(
    tokenizer: PreTrainedTokenizerBase, wording: Wording, pieces: Sequence[Texts], around: tuple[list[int], list[int]]
) -> list[int]:
    """Return the tokens of texts that are tokenized apart, by transformers, in which clients write no control tokens.

    around: the special tokens around them. An example is skipped if a control token arises where its texts meet, which
    transformers does not know, or if the tokenizer gives a control token for its text alone, which both refuse.
    """
    own = wording.own_text
    added = tokenizer.added_tokens_decoder.values()
    control_tokens = tuple(t.content for t in added if t.special or (t.content in own and not t.content.isspace()))
    pattern = reference._get_control_token_patterns(control_tokens)[0]
    before, behind = around
    ids = [*before]
    for texts in pieces:
        starts = accumulate((len(text) for text, _ in texts), initial=0)
        apart = [
            start + m.start() for start, (text, _) in zip(starts, texts, strict=False) for m in pattern.finditer(text)
        ]
        assume(apart == [match.start() for match in pattern.finditer("".join(text for text, _ in texts))])
        chat = "".join(reference.mark_control_tokens(text, pattern) if sent else text for text, sent in texts)
        try:
            ids += reference.encode_marked_chat(tokenizer, chat)
        except ValueError:
            reject()
    return [*ids, *behind]


def sequences_of(prompt: Prompt, items: list[str]) -> list[list[int]]:
    """Return the tokens that are scored for each item."""
    encoder = prompt.row_encoder()
    return whole_sequences(encoder.query, Rows.join(list(encoder(items))))
