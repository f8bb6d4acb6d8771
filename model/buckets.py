"""Which shapes are compiled. Every compile key is declared here, so that the set stays small and known.

A step computes a flat run of tokens, whosever they are, tightly packed. Norms, products and the MLP know of nothing but
how many tokens there are, so a few sizes do for everything. What differs with the length of an item is only how its own
tokens look at one another: there items stand apart, padded to a *span*, since the sums of a softmax would come out in
another order wherever else an item began. How long a prefix is, and where it lies, is no part of a shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from scoring.layout import Head

ROW_FLOOR = 64
"""Rows of the smallest product. From here up to 256 rows, a row's bits do not depend on how many there are, in any
product of the decoder on the CPUs it was tried on (``tests/model/test_row_floors.py``); below, they do.
"""
HEAD_ROWS = 128
"""Rows of a head program. Over a vocabulary of 150,000, 8 rows take a CPU as long as these (0.1 s, measured)."""
LABELS = (8, 64, 256)
SHORTEST_SPAN = 8
SHORTEST_PACKED = 256
"""Tokens of the shortest packed sequence."""


@dataclass(frozen=True, slots=True)
class EnterKey:
    """The program that looks up so many tokens."""

    tokens: int


@dataclass(frozen=True, slots=True)
class ProjectKey:
    """The first half of a layer for so many tokens; ``reads``: of how many of them queries are wanted, 0 for all."""

    tokens: int
    reads: int = 0


@dataclass(frozen=True, slots=True)
class BeforeKey:
    """Attention of so many tokens to their prefix, in a pool of so many blocks."""

    tokens: int
    blocks: int


@dataclass(frozen=True, slots=True)
class OwnKey:
    """Attention of ``rows`` items, padded to ``span`` tokens, to themselves; ``last``: of their last token alone."""

    span: int
    rows: int
    last: bool


@dataclass(frozen=True, slots=True)
class PackedKey:
    """Attention of a packed sequence to itself; ``reads``: of how many of its tokens, 0 for all."""

    tokens: int
    reads: int
    dense: bool


@dataclass(frozen=True, slots=True)
class LeaveKey:
    """The second half of a layer for so many tokens."""

    tokens: int


@dataclass(frozen=True, slots=True)
class StoreKey:
    """The program that writes a step's keys and values into a block of a pool of so many."""

    blocks: int


@dataclass(frozen=True, slots=True)
class HeadKey:
    """A head program: ``rows`` hidden states against ``labels`` label ids, padding included."""

    head: Head
    rows: int
    labels: int


Key = EnterKey | ProjectKey | BeforeKey | OwnKey | PackedKey | LeaveKey | StoreKey | HeadKey


@dataclass(frozen=True, slots=True)
class Span:
    """Items of at most ``length`` tokens of their own, of which at most ``rows`` share a step."""

    length: int
    rows: int


@dataclass(frozen=True, slots=True)
class Buckets:
    """The shapes of one model.

    sizes: tokens that a step may compute, ascending; spans: ascending; reads: items of a step, at most, since the last
    layer computes so many positions, one an item.
    """

    sizes: tuple[int, ...]
    spans: tuple[Span, ...]
    reads: int

    @classmethod
    def of(cls, step_tokens: int, *, one_size: bool = False) -> Buckets:
        """Steps of 64, 128, … ``step_tokens`` tokens, a power of two; spans of 8, 16, … up to it.

        one_size: for a platform where a row's bits depend on how many rows there are, all steps are as large.
        """
        sizes = [step_tokens]
        while sizes[0] > ROW_FLOOR and not one_size:
            sizes.insert(0, sizes[0] // 2)
        reads = max(ROW_FLOOR, step_tokens // 4)
        spans: list[Span] = []
        length, shorter = SHORTEST_SPAN, 0
        while shorter < step_tokens:
            spans.append(Span(length, min(reads, step_tokens // (shorter + 1))))
            length, shorter = 2 * length, length
        return cls(tuple(sizes), tuple(spans), reads)

    @property
    def step(self) -> int:
        """Tokens of the largest step, and of a block of the pool."""
        return self.sizes[-1]

    def size(self, tokens: int) -> int:
        """What a step of so many tokens computes."""
        return next(size for size in self.sizes if tokens <= size)

    def span(self, tokens: int) -> Span:
        """Where an item of so many tokens of its own belongs, which are at most ``step``."""
        return next(span for span in self.spans if tokens <= span.length)

    def interface(self, tokens: int) -> int:
        """Rows of the arrays that programs for so many tokens hand to one another: padded, so that they all fit."""
        return max(tokens, self.step)

    def packed(self, tokens: int, longest: int, reads: int) -> tuple[int, int]:
        """Tokens and reads of the programs for a packed sequence of so many, at most ``longest`` tokens."""
        size = SHORTEST_PACKED
        while size < longest and (size < tokens or packed_reads(size) < reads):
            size = min(size + (1 << (size.bit_length() - 1)) // 4, longest)
        return size, packed_reads(size)

    def head(self, head: Head, labels: int) -> HeadKey:
        """The program for so many labels; past the largest bucket, the next power of two."""
        bucket = next((bucket for bucket in LABELS if labels <= bucket), 1 << (labels - 1).bit_length())
        return HeadKey(head, HEAD_ROWS, bucket)

    def core(self, blocks: int) -> tuple[Key, ...]:
        """What is compiled before serving: enough to score anything that has few labels. blocks: of the pool."""
        ends = (key for size in dict.fromkeys((self.sizes[0], self.step)) for key in self._of_size(size, blocks))
        read = () if self.reads in self.sizes else (BeforeKey(self.reads, blocks), LeaveKey(self.reads))
        own = (OwnKey(span.length, span.rows, last) for span in self.spans for last in (False, True))
        heads = (self.head(head, LABELS[0]) for head in Head)
        return (*ends, *read, StoreKey(blocks), *heads, *own)

    def rest(self, blocks: int) -> tuple[Key, ...]:
        """What is compiled once serving has begun: sizes between the smallest and the largest step, and many labels."""
        between = (key for size in self.sizes[1:-1] for key in self._of_size(size, blocks))
        return (*between, *(self.head(head, labels) for labels in LABELS[1:] for head in Head))

    def _of_size(self, size: int, blocks: int) -> tuple[Key, ...]:
        """The programs of steps of so many tokens."""
        reading = ProjectKey(size, self.reads)
        return (EnterKey(size), ProjectKey(size), BeforeKey(size, blocks), LeaveKey(size), reading)


def packed_reads(tokens: int) -> int:
    """How many scores a packed sequence of so many tokens can have read off it."""
    return max(64, 1 << (tokens // 8 - 1).bit_length())
