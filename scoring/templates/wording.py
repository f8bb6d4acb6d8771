"""How a query and an item become text: pieces of text with places for the texts that a client sends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Place(Enum):
    """What a template leaves to the client. In a file it is written in braces, such as ``{query}``."""

    INSTRUCTION = "instruction"
    QUERY = "query"
    ITEM = "item"


Piece = tuple[str | Place, ...]
"""A text that is tokenized by itself: the template's own texts, and places."""

_PLACES = re.compile("|".join(rf"\{{({place.value})\}}" for place in Place))


class TemplateError(ValueError):
    """A template that can't be used. The message says why."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How a query and an item become text.

    The pieces are tokenized one by one, but the last one of the query and the first one of the item are one text.
    """

    query: tuple[Piece, ...]  # holds the place of the query, once
    item: tuple[Piece, ...]  # holds the place of the item, once
    instruction: str = ""  # what stands at the place of the instruction, if there is one
    sent_characters: int = 0  # how many of all these a client has sent; 0: the instruction is the template's

    @property
    def own_text(self) -> str:
        """The texts of the template itself. A NUL character stands where a place, or another piece, divides them."""
        pieces = (*self.query, *self.item)
        return "\0".join(part for piece in pieces for part in piece if isinstance(part, str))


def read_pieces(texts: str | Sequence[str], place: Place, allowed: Sequence[Place] = ()) -> tuple[Piece, ...]:
    """Return the pieces that a template's text, or list of texts, consists of.

    place: what must stand in them, once. allowed: what else may stand in them, once. Other braces are text. Raises
    TemplateError.
    """
    pieces = tuple(_read_piece(text) for text in ([texts] if isinstance(texts, str) else texts))
    found = [part for piece in pieces for part in piece if isinstance(part, Place)]
    if found.count(place) != 1:
        raise TemplateError(f"it must have the place {{{place.value}}} once, and has it {found.count(place)} times")
    for other in found:
        if other is not place and other not in allowed:
            raise TemplateError(f"it has the place {{{other.value}}}, which does not belong there")
        if found.count(other) > 1:
            raise TemplateError(f"it has the place {{{other.value}}} more than once")
    return pieces


def has_place(pieces: Sequence[Piece], place: Place) -> bool:
    """Return whether a place stands in one of the pieces."""
    return any(part is place for piece in pieces for part in piece)


def _read_piece(text: str) -> Piece:
    parts: list[str | Place] = []
    start = 0
    for match in _PLACES.finditer(text):
        parts += [text[start : match.start()], Place(match[0][1:-1])]
        start = match.end()
    return tuple(part for part in (*parts, text[start:]) if part != "")
