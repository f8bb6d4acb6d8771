"""Known answers of whole steps: full of copies of a few items, at many places and in changing company.

A program of a whole step is the whole model. The programs that need the pool can't be called on arrays of their own,
because a pool may take most of the device's memory. So before a worker serves, a few items of two prefixes are scored
as any others are: in steps that are full of their copies, beside other items, and alone. NumPy computes each item once,
and all of its copies must have the same bits (:meth:`model.checks.known_answer.ModelChecks.check_model`).
"""

from __future__ import annotations

import numpy as np

from model.checks.known_prompts import KnownPrompts, prompt
from model.whole_steps.shape import StepShape
from scoring.layout import TokenIds

SHORT_PREFIX = 5  # tokens
BEYOND = 3
"""How many tokens the long prefix has behind its first block, and the longest item behind its first tile."""
OWNERS = 2
"""How many owners have each prefix at least. Owners share no blocks, so it is computed for each of them."""

Item = tuple[TokenIds, int]  # its own tokens, and how many tokens of its prefix it sees


def full_steps(vocabulary: int, shape: StepShape, context: int) -> KnownPrompts:
    """Return items of two prefixes in steps that are full of them, and in other company.

    One prefix goes on into a second block, and one item into a second tile. context: tokens of the longest sequence
    that is served.
    """
    random = np.random.default_rng(0)

    def draw(length: int) -> TokenIds:
        return random.integers(0, vocabulary, length, np.int32)

    def items(*lengths: tuple[int, int]) -> list[Item]:
        return [(draw(min(length, context - end)), end) for length, end in lengths]

    long, short = max(1, min(shape.block_tokens + BEYOND, context - 20)), max(1, min(SHORT_PREFIX, context - 1))
    longest = shape.tile_rows + BEYOND
    known = (
        (draw(long), items((20, long), (9, long - 1), (5, long // 2), (1, long), (0, long))),
        (draw(short), items((longest, short), (9, short), (3, short), (2, short - 1), (1, short), (0, short))),
    )
    owners = max(OWNERS, shape.tiles // sum(-(-len(prefix) // shape.tile_rows) for prefix, _ in known))
    rows_of_each = shape.tokens // (len(known) * owners)
    full = [
        prompt(prefix, _repeated(of_prefix, rows_of_each), f"owner {n}")
        for n in range(owners)
        for prefix, of_prefix in known
    ]
    prompts = tuple(prompt(prefix, of_prefix) for prefix, of_prefix in known)
    mixed = [prompt(draw(long), items((longest, long), (4, 1)))]
    for prefix, of_prefix in reversed(known):
        end = len(prefix)
        mixed.append(prompt(prefix, items((30, end), (17, end), (2, end)) + of_prefix))
    return KnownPrompts(prompts, (tuple(full), tuple(mixed), *((alone,) for alone in prompts)))


def _repeated(items: list[Item], tokens: int) -> list[Item]:
    """Return copies of items, each at least once, of so many tokens together unless the items alone have more."""
    found, left = list(items), tokens - sum(len(own) for own, _ in items)
    while fitting := [item for item in items if 0 < len(item[0]) <= left]:
        for item in fitting:
            if len(item[0]) <= left:
                found.append(item)
                left -= len(item[0])
    return found
