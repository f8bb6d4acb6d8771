"""Which shapes are compiled. Every compile key is declared here, so that the set stays small and known.

There is one program of rows per length bucket, with one row count, filled up with padding where rows are few. That is
what makes a score's bits follow from its own sequence alone: the sums of a product come out in another order for
another number of rows (measured on a CPU, for most shapes), so a program for few rows beside one for many would let a
row's company show in its last bits. How long a prefix is, and where it lies, is no part of a shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from scoring.layout import Head

SHORTEST = 4
"""Tokens of the shortest length bucket, and the step between the next ones."""
HEAD_ROWS = 128
"""Rows of a head program. Over a vocabulary of 150,000, 8 rows take a CPU as long as these (0.1 s, measured)."""
LABELS = (8, 64, 256)
WARM_LENGTH = 128
"""Longest length bucket, in tokens, that is compiled before serving."""
BLOCK_TOKENS = 256
"""Tokens that a block of the pool holds, and that are prefilled at a time."""
PREFILL_TOKENS = (64, 128, BLOCK_TOKENS)
"""What a step of prefill may compute: whole blocks, and at a prefix's end the smallest of these that holds the rest."""
SHORTEST_PACKED = 256
"""Tokens of the shortest packed sequence."""


@dataclass(frozen=True, slots=True)
class RowsKey:
    """A program of ``rows`` rows of ``length`` tokens of their own, padding included, behind a prefix or none."""

    rows: int
    length: int


@dataclass(frozen=True, slots=True)
class PrefillKey:
    """The program that continues a prefix by so many tokens."""

    tokens: int


@dataclass(frozen=True, slots=True)
class StoreKey:
    """The program that writes so many tokens' keys and values into a block of the pool."""

    tokens: int


@dataclass(frozen=True, slots=True)
class PackedKey:
    """A program of one packed sequence: its tokens, how many of them are read, and how the mask is made."""

    tokens: int
    reads: int
    dense: bool


@dataclass(frozen=True, slots=True)
class HeadKey:
    """A head program: ``rows`` hidden states against ``labels`` label ids, padding included."""

    head: Head
    rows: int
    labels: int


Key = RowsKey | PrefillKey | StoreKey | PackedKey | HeadKey


@dataclass(frozen=True, slots=True)
class Buckets:
    """The shapes of one model. lengths: of rows, in tokens, ascending; step_tokens: what a step aims at."""

    lengths: tuple[int, ...]
    step_tokens: int

    @classmethod
    def of(cls, context: int, step_tokens: int) -> Buckets:
        """4, 8, … 32, then four steps an octave (40, 48, 56, 64, 80, …), up to the first that holds ``context``.

        Steps of a fifth to an eighth cost about a twelfth in padding.
        """
        lengths = [SHORTEST]
        while lengths[-1] < context:
            lengths.append(_next_length(lengths[-1]))
        return cls(tuple(lengths), step_tokens)

    def rows(self, tokens: int) -> RowsKey:
        """The program for a row of so many tokens of its own."""
        length = next(length for length in self.lengths if tokens <= length)
        return RowsKey(max(1, self.step_tokens // length), length)

    def packed(self, tokens: int, longest: int, reads: int, *, dense: bool) -> PackedKey:
        """The program for a packed sequence of so many tokens, at most ``longest``, with so many scores read off it."""
        size = SHORTEST_PACKED
        while size < longest and (size < tokens or packed_reads(size) < reads):
            size = min(_next_length(size), longest)
        return PackedKey(size, packed_reads(size), dense)

    def head(self, head: Head, labels: int) -> HeadKey:
        """The program for so many labels; past the largest bucket, the next power of two."""
        bucket = next((bucket for bucket in LABELS if labels <= bucket), 1 << (labels - 1).bit_length())
        return HeadKey(head, HEAD_ROWS, bucket)

    def warm_set(self) -> tuple[Key, ...]:
        """What is compiled before serving: prefixes, short rows, a few labels. The rest is compiled when it is met."""
        rows = (self.rows(length) for length in self.lengths if length <= WARM_LENGTH)
        prefixes = (key(tokens) for tokens in PREFILL_TOKENS for key in (PrefillKey, StoreKey))
        return (*prefixes, *rows, *(self.head(head, LABELS[0]) for head in Head))


def prefill_tokens(rest: int) -> int:
    """What the next step computes of a prefix of which ``rest`` tokens are left to do."""
    return next((tokens for tokens in PREFILL_TOKENS if rest <= tokens), BLOCK_TOKENS)


def _next_length(length: int) -> int:
    """The bucket after one: four to an octave."""
    octave = 1 << (length.bit_length() - 1)
    return length + max(SHORTEST, octave // 4)


def packed_reads(tokens: int) -> int:
    """How many scores a packed sequence of so many tokens can have read off it."""
    return max(64, tokens // 8)
