"""Which shapes are compiled. Every compile key is declared here, so that the set stays small and known.

There is one body program per length bucket, with one row count, filled up with padding where rows are few. That is
what makes a score's bits follow from its own sequence alone: the sums of a product come out in another order for
another number of rows (measured on a CPU, for most shapes), so a program for few rows beside one for many would let a
row's company show in its last bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from scoring.layout import Head

SHORTEST = 32
"""Tokens of the shortest length bucket."""
HEAD_ROWS = 128
"""Rows of a head program. Over a vocabulary of 150,000, 8 rows take a CPU as long as these (0.1 s, measured)."""
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
    """The shapes of one model. lengths: of sequences, in tokens, ascending; step_tokens: what a step aims at."""

    lengths: tuple[int, ...]
    step_tokens: int

    @classmethod
    def of(cls, context: int, step_tokens: int) -> Buckets:
        """32, 64, 96, 128, 192, 256, 384, … tokens, up to the first that holds ``context``.

        Steps of a third to a half cost about a sixth in padding.
        """
        lengths = [SHORTEST]
        while lengths[-1] < context:
            last = lengths[-1]
            is_power = last & (last - 1) == 0
            lengths.append(last * 2 if last == SHORTEST else last * 3 // 2 if is_power else last * 4 // 3)
        return cls(tuple(lengths), step_tokens)

    def body(self, tokens: int) -> BodyKey:
        """The program for a sequence of so many tokens."""
        length = next(length for length in self.lengths if tokens <= length)
        return BodyKey(max(1, self.step_tokens // length), length)

    def head(self, head: Head, labels: int) -> HeadKey:
        """The program for so many labels; past the largest bucket, the next power of two."""
        bucket = next((bucket for bucket in LABELS if labels <= bucket), 1 << (labels - 1).bit_length())
        return HeadKey(head, HEAD_ROWS, bucket)

    def warm_set(self) -> tuple[Key, ...]:
        """What is compiled before serving: short sequences, a few labels. The rest is compiled when it is met."""
        bodies = (self.body(length) for length in self.lengths if length <= WARM_LENGTH)
        return (*bodies, *(self.head(head, LABELS[0]) for head in Head))
