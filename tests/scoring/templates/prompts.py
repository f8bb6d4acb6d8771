"""The texts of a prompt, and its tokens."""

from __future__ import annotations

from scoring.layout import Rows
from scoring.templates.encoding import Prompt
from scoring.templates.wording import Place, Wording
from tests.packed_rows import whole_sequences


def pieces_of(wording: Wording, query: str, item: str) -> list[str]:
    """Return the texts that are tokenized apart."""
    texts = {Place.INSTRUCTION: wording.instruction, Place.QUERY: query, Place.ITEM: item}
    joined = (*wording.query[:-1], (*wording.query[-1], *wording.item[0]), *wording.item[1:])
    return ["".join(texts[part] if isinstance(part, Place) else part for part in piece) for piece in joined]


def text_of(wording: Wording, query: str, item: str) -> str:
    """Return the whole text of a prompt."""
    return "".join(pieces_of(wording, query, item))


def sequences_of(prompt: Prompt, items: list[str]) -> list[list[int]]:
    """Return the tokens that are scored for each item."""
    encoder = prompt.row_encoder()
    return whole_sequences(encoder.query, Rows.join(list(encoder(items))))
