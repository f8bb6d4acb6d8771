"""Known answers of whole steps: full of copies of a few items, at many places and in changing company.

A program of a whole step is the whole model. The programs that need the pool can't be called on arrays of their own,
because a pool may take most of the device's memory. So before a worker serves, a few items of two prefixes are scored
as any others are: in steps that are full of their copies, beside other items, and alone. NumPy computes each item once,
and all of its copies must have the same bits (:func:`full_steps`, :meth:`ModelChecks.check_model`). Programs for packed
sequences are compared with NumPy when they are compiled.
"""

from __future__ import annotations

import jax
import numpy as np

from model.buckets import HeadKey
from model.checks.known_answer import Case, ModelChecks
from model.checks.known_prompts import KnownPrompts, known_prompt, prompt
from model.packed_sequence import PackedSequence
from model.platforms import Platform
from model.score_buffer import Row, ScoreBuffer
from model.whole_steps.executables import PackedKey, WholeStepKey
from model.whole_steps.programs import WholeStepPrograms
from model.whole_steps.shape import StepShape
from scoring.layout import TokenIds

COPIES = 3
"""How often the known prompt stands in a packed sequence, at different places."""
SHORT_PREFIX = 5  # tokens
BEYOND = 3
"""How many tokens the long prefix has behind its first block, and the longest item behind its first tile."""
OWNERS = 2
"""How many owners have each prefix at least. Owners share no blocks, so it is computed for each of them."""

Item = tuple[TokenIds, int]  # its own tokens, and how many tokens of its prefix it sees


class KnownWholeSteps(ModelChecks[WholeStepKey]):
    """Checks the programs of whole steps."""

    def __init__(self, programs: WholeStepPrograms, platform: Platform, shape: StepShape) -> None:
        super().__init__(programs, platform)
        self._programs = programs
        self._shape = shape

    def prompts(self, context: int) -> KnownPrompts:
        """Return what full steps are compared by: see :meth:`ModelChecks.prompts`."""
        return full_steps(self._config.vocabulary, self._shape, context)

    def check(self, key: WholeStepKey, executable: jax.stages.Compiled) -> None:
        """Run a program, unless it needs the pool. Raises :class:`model.checks.known_answer.KnownAnswerError`."""
        match key:
            case HeadKey():
                super().check(key, executable)
            case PackedKey(tokens, logit_rows, _):
                self._check_packed(str(key), executable, tokens, logit_rows)

    def _case(self, key: WholeStepKey) -> Case:
        assert isinstance(key, HeadKey)
        return self._lm_head(np.random.default_rng(0), key.head, key.rows, key.labels)

    def _check_packed(self, name: str, executable: jax.stages.Compiled, tokens: int, logit_rows: int) -> None:
        group = known_prompt(self._config.vocabulary)
        (chunk,) = group.chunks
        buffer, stops = ScoreBuffer.of(chunk), np.cumsum(chunk.rows.lengths)
        rows = [
            Row(chunk.rows.tokens[stop - length : stop], end, buffer, index)
            for index, (stop, length, end) in enumerate(
                zip(stops, chunk.rows.lengths, chunk.rows.prefix_ends, strict=True)
            )
        ]
        sequence = PackedSequence()
        for _ in range(COPIES):
            begin = sequence.add_prefix(group.prefix)
            for row in rows:
                sequence.add_row(row, begin)
        (states,) = executable(*self._programs.weights, *sequence.arrays(tokens, logit_rows))
        found = np.asarray(states)[: COPIES * len(rows)]
        known = KnownPrompts((group,), ((group,) * COPIES,))
        self.compare(known, {name: found})


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
