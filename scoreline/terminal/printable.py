"""Make text from elsewhere safe to print: a terminal obeys escape sequences in it, and newlines could forge lines."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """Return the text with its control and format characters written out, such as ``\\x1b``.

    keep: characters that are left as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else _written_out(character) for character in text
    )


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
