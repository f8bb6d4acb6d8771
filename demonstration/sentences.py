"""Sentences from templates, and the rule that holds some content out of training."""

from __future__ import annotations

import hashlib
import random
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

_WORDS = Path(__file__).parent / "words"
_CHOICE = re.compile(r"\{([^{}]*\|[^{}]*)\}")
_HELD_OUT_SHARE = 10


@cache
def words(name: str) -> dict[str, Any]:
    """Return the word lists of ``words/<name>.toml``."""
    return tomllib.loads((_WORDS / f"{name}.toml").read_text(encoding="utf-8"))


def held_out(*content: str) -> bool:
    """Return whether content is held out for evaluation, as one in ten is.

    A hash of the content decides, so training and evaluation agree without a list, whatever their seeds.
    """
    digest = hashlib.sha256("\n".join(content).encode()).digest()
    return int.from_bytes(digest[:4], "big") % _HELD_OUT_SHARE == 0


def fill(template: str, rng: random.Random, **values: str) -> str:
    """Fill ``{field}`` from ``values``, and choose randomly in every ``{this|or that}``."""
    for field, value in values.items():
        template = template.replace(f"{{{field}}}", value)
    while match := _CHOICE.search(template):
        template = template[: match.start()] + rng.choice(match[1].split("|")) + template[match.end() :]
    return template


def with_article(noun: str) -> str:
    """Return the noun with "a" or "an" before it."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def plural(noun: str) -> str:
    """Return the plural of the name of a reviewed thing."""
    if noun.startswith("pair of "):
        return f"pairs of {noun.removeprefix('pair of ')}"
    if noun == "series":
        return noun
    if noun.endswith("y") and noun[-2] not in "aeou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "ch", "sh")) else f"{noun}s"


def pick(options: Sequence[str], rng: random.Random, count: int) -> list[str]:
    """Return up to ``count`` different options, in a random order."""
    return rng.sample(list(options), min(count, len(options)))
