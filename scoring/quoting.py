"""Quote what a client sent in a message, but only a little of it, so that an error is small whatever was sent."""

from __future__ import annotations

import json
from collections.abc import Sequence

QUOTED_CHARACTERS = 200
"""The most characters of one text that a message quotes."""

QUOTED_PIECES = 10
"""The most pieces, such as tokens of a text or names of fields, that a message lists."""


_NAME_CHARACTERS = 64


def quote(text: str) -> str:
    """Return the beginning of a text in quotation marks. If something is left out, the whole length follows."""
    if len(text) <= QUOTED_CHARACTERS:
        return repr(text)
    return f"{text[:QUOTED_CHARACTERS]!r}… ({len(text)} characters)"


def quote_name(name: str) -> str:
    """Return the beginning of a name, such as that of an unknown field, as JSON."""
    return json.dumps(name if len(name) <= _NAME_CHARACTERS else f"{name[:_NAME_CHARACTERS]}…")


def quote_pieces(pieces: Sequence[str], count: int | None = None) -> str:
    """Return the first pieces of a text as a list. They are shortened so that all of them fit into one quotation.

    count: how many pieces there are in all, if not all of them are given.
    """
    most = QUOTED_CHARACTERS // QUOTED_PIECES
    named = [repr(piece) if len(piece) <= most else f"{piece[:most]!r}…" for piece in pieces[:QUOTED_PIECES]]
    if (len(pieces) if count is None else count) > QUOTED_PIECES:
        named.append("…")
    return f"[{', '.join(named)}]"
