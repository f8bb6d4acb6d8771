"""Which shapes are compiled. Every compile key is declared here, so that the set stays small and known.

A sequence runs in a program of its own length bucket, and how many rows go with it is one of a few row buckets: its
bits follow from its own length alone (see :mod:`model.product`). Length steps of a third to a half cost about a sixth
in padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from model.config import DecoderConfig
from scoring.layout import Head

SHORTEST = 32
"""Tokens of the shortest length bucket."""
FEWEST_TOKENS = 64
"""Tokens of the smallest program: products of fewer rows run no faster."""
STEP_RATIO = 8
"""From one size of step to the next there are this many times the tokens. On a CPU a large model runs 64 tokens at half
the rate of 512, and more bring nothing."""
SMALL_MODEL = 30_000_000
"""Parameters below which a step costs little more than its tokens, so that one size of step is enough."""
SMALL_MODEL_TOKENS = 256
"""That size, in tokens."""
HEAD_ROWS = (16, 256)
LABELS = (8, 64, 256)
WARM_LENGTH = 256
"""Longest length bucket, in tokens, that is compiled before serving."""


@dataclass(frozen=True, slots=True)
class BodyKey:
    """A body program: ``rows`` sequences of ``length`` tokens, padding included."""

    rows: int
    length: int


@dataclass(frozen=True, slots=True)
class HeadKey:
    """A head program: ``rows`` hidden states against ``labels`` label ids, padding included."""

    head: Head
    rows: int
    labels: int


Key = BodyKey | HeadKey


@dataclass(frozen=True, slots=True)
class Buckets:
    """The shapes of one model. lengths: of sequences, in tokens, ascending; steps: tokens of a step, ascending."""

    lengths: tuple[int, ...]
    steps: tuple[int, ...]

    @classmethod
    def of(cls, config: DecoderConfig, step_tokens: int) -> Buckets:
        """For a model and what a step of the engine aims at."""
        return cls(_lengths(config.context), _steps(config.body_parameters, step_tokens))

    def length(self, tokens: int) -> int:
        """The bucket of a sequence."""
        return next(length for length in self.lengths if tokens <= length)

    def rows(self, length: int) -> tuple[int, ...]:
        """Row counts of the programs for one length bucket, ascending."""
        return tuple(sorted({max(1, tokens // length) for tokens in self.steps}))

    def batches(self, length: int, count: int) -> Iterator[int]:
        """Cut ``count`` rows of one length bucket into row buckets; only the last batch may have padding rows.

        A bucket is taken where it gets at least half full: emptier, smaller programs do the rest in less time.
        """
        sizes = self.rows(length)
        while count > 0:
            size = next((size for size in reversed(sizes) if 2 * count >= size), sizes[0])
            yield size
            count -= size

    def warm_set(self) -> tuple[Key, ...]:
        """What is compiled before serving: short sequences, a few labels. The rest is compiled when it is met."""
        bodies = (
            BodyKey(rows, length) for length in self.lengths if length <= WARM_LENGTH for rows in self.rows(length)
        )
        return (*bodies, *(HeadKey(head, HEAD_ROWS[0], LABELS[0]) for head in Head))


def head_rows(rows: int) -> int:
    """The row bucket of a head over so many hidden states; past the largest there is more than one call."""
    return next((bucket for bucket in HEAD_ROWS if rows <= bucket), HEAD_ROWS[-1])


def label_count(labels: int) -> int:
    """The bucket of so many labels; past the largest, the next power of two."""
    return next((bucket for bucket in LABELS if labels <= bucket), 1 << (labels - 1).bit_length())


def _lengths(context: int) -> tuple[int, ...]:
    """32, 64, 96, 128, 192, 256, 384, … up to the first that holds ``context``."""
    lengths = [SHORTEST]
    while lengths[-1] < context:
        last = lengths[-1]
        is_power = last & (last - 1) == 0
        lengths.append(last * 2 if last == SHORTEST else last * 3 // 2 if is_power else last * 4 // 3)
    return tuple(lengths)


def _steps(parameters: int, step_tokens: int) -> tuple[int, ...]:
    if parameters < SMALL_MODEL:
        return (min(SMALL_MODEL_TOKENS, step_tokens),)
    steps = []
    tokens = FEWEST_TOKENS
    while tokens < step_tokens:
        steps.append(tokens)
        tokens *= STEP_RATIO
    return (*steps, step_tokens)
