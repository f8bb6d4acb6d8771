"""Extensions of all lengths, with tails and without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from model.forward import Extension


def extensions(lengths: list[int]) -> list[Extension]:
    """Extensions whose token ids are all different."""
    ids = np.split(np.arange(1, sum(lengths) + 1, dtype=np.int32), np.cumsum(lengths)[:-1])
    return [Extension(tokens, 1_000 * number) for number, tokens in enumerate(ids)]


shapes_with_tails = st.lists(
    st.tuples(st.integers(1, 70), st.lists(st.integers(1, 40), max_size=7)), min_size=1, max_size=12
)
"""The tokens of extensions without their tails, and the lengths of these."""


def with_tails(shapes: list[tuple[int, list[int]]]) -> list[Extension]:
    """Extensions with tails, whose token ids are all different."""
    if not shapes:
        return []
    of_each = extensions([stem + sum(tails) for stem, tails in shapes])
    return [
        replace(extension, tails=tuple(tails), read=1 + sum(tails))
        for extension, (_, tails) in zip(of_each, shapes, strict=True)
    ]


def paths(extension: Extension) -> list[list[tuple[int, int]]]:
    """The tokens and positions of an extension without its tails, and of each tail behind that."""
    found, tokens = list[list[tuple[int, int]]](), extension.tokens.tolist()
    stem = len(tokens) - sum(extension.tails)
    begin = stem
    for tail in (0, *extension.tails):
        path = [*tokens[:stem], *tokens[begin : begin + tail]]
        found.append([(token, extension.start + number) for number, token in enumerate(path)])
        begin += tail
    return found
