"""Sentences from templates, and the rule that keeps some of their content away from training."""

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
    """The word lists of ``words/<name>.toml``."""
    return tomllib.loads((_WORDS / f"{name}.toml").read_text(encoding="utf-8"))


def held_out(*content: str) -> bool:
    """Whether this content is kept for evaluation: one in ten, decided by a hash of the content alone.

    It depends on no seed and no order, so training and evaluation agree on it without a list.
    """
    digest = hashlib.sha256("\n".join(content).encode()).digest()
    return int.from_bytes(digest[:4], "big") % _HELD_OUT_SHARE == 0


def fill(template: str, rng: random.Random, **values: str) -> str:
    """Fill ``{field}`` from ``values`` and settle every ``{this|or that}`` by chance."""
    for field, value in values.items():
        template = template.replace(f"{{{field}}}", value)
    while match := _CHOICE.search(template):
        template = template[: match.start()] + rng.choice(match[1].split("|")) + template[match.end() :]
    return template


def with_article(noun: str) -> str:
    """The noun with "a" or "an" before it."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def capitalised(text: str) -> str:
    """The text with its first letter in upper case, the rest untouched."""
    return text[:1].upper() + text[1:]


def plural(noun: str) -> str:
    """The plural of a name of a reviewed thing."""
    if noun.startswith("pair of "):
        return f"pairs of {noun.removeprefix('pair of ')}"
    if noun == "series":
        return noun
    if noun.endswith("y") and noun[-2] not in "aeou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "ch", "sh")) else f"{noun}s"


def pick(options: Sequence[str], rng: random.Random, count: int) -> list[str]:
    """Up to ``count`` different options, in a random order."""
    return rng.sample(list(options), min(count, len(options)))
