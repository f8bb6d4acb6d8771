"""Docstrings of the client as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ROLE = re.compile(r":[a-z]+:`([^`]*)`")


def as_markdown(docstring: str, names: Iterable[str] = ()) -> str:
    """Return a docstring as Markdown: roles become code, examples blocks of Python, and options lists.

    names: those of the options, each of which the docstring explains behind its name and a colon.
    """
    paragraphs = re.split(r"\n\s*\n", _ROLE.sub(r"`\1`", docstring.strip()))
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    option = re.compile(rf"(?:^|(?<=[.;])\s)(?P<names>(?:{known})(?:, (?:{known}))*):\s") if known else None
    return "\n\n".join(_paragraph(one, option) for one in paragraphs)


def _paragraph(text: str, option: re.Pattern[str] | None) -> str:
    before, found, example = f"\n{text}".partition("\n>>> ")
    if found:
        said = _paragraph(before.strip(), option) + "\n\n" if before.strip() else ""
        return f"{said}```pycon\n>>> {example}\n```"
    if option is None or not option.match(text):
        return text
    _, *parts = option.split(text)
    return "\n".join(
        f"- {', '.join(f'`{name}`' for name in names.split(', '))}: {' '.join(said.split())}"
        for names, said in zip(parts[::2], parts[1::2], strict=True)
    )
