"""Which shapes are compiled. Every compile key is declared here, so that the set stays small and known.

A step computes a flat run of tokens, whosever they are, tightly packed. Norms, products and the MLP know of nothing but
how many tokens there are, so a few sizes do for everything. What differs with the length of an item is only how its own
tokens look at one another: there items stand apart, padded to a *span*, since the sums of a softmax would come out in
another order wherever else an item began. How long a prefix is, and where it lies, is no part of a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scoring.layout import Head
from scoring.planning.estimates import Shapes

ROW_FLOOR = 64
"""Rows of the smallest product. From here up to 256 rows, a row's bits do not depend on how many there are, in any
product of the decoder on the CPUs it was tried on (``tests/model/test_row_floors.py``); below, they do.
"""
HEAD_ROWS = 128
"""Rows of a head program. Over a vocabulary of 150,000, 8 rows take a CPU as long as these (0.1 s, measured)."""
LABELS = (8, 64, 256)
SHORTEST_SPAN = 8
SHORTEST_PACKED = 256
"""Tokens of the shortest packed sequence, padding included."""


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
    """Items of at most ``length`` tokens of their own, and of more than the span below; at most ``rows`` in a step."""

    length: int
    rows: int


@dataclass(frozen=True, slots=True)
class Buckets:
    """The shapes of one model.

    sizes: tokens that a step may compute, ascending; first: those of them that are compiled before serving; spans:
    ascending; reads: positions that the last layer computes, one an item; packed_sizes: tokens that a packed sequence
    may compute, ascending.
    """

    sizes: tuple[int, ...]
    first: tuple[int, ...]
    spans: tuple[Span, ...]
    reads: int
    packed_sizes: tuple[int, ...]

    @classmethod
    def of(
        cls,
        step_tokens: int,
        *,
        one_size: bool = False,
        first: Sequence[int] = (),
        most_rows: int | None = None,
        packed: Sequence[int] = (),
        longest_packed: int = SHORTEST_PACKED,
    ) -> Buckets:
        """Steps of 64, 128, … ``step_tokens`` tokens, a power of two; spans of 8, 16, … up to it.

        one_size: for a platform where a row's bits depend on how many rows there are, all steps are as large; first:
        tokens that steps compiled before serving hold, besides the largest; most_rows: items of a step, at most;
        packed: sizes of packed sequences, of which those below ``longest_packed`` count.
        """
        sizes = [step_tokens]
        while sizes[0] > ROW_FLOOR and not one_size:
            sizes.insert(0, sizes[0] // 2)
        wanted = {next(size for size in sizes if tokens <= size) for tokens in first if tokens <= step_tokens}
        reads = max(ROW_FLOOR, step_tokens // 4)
        spans: list[Span] = []
        length, shorter = SHORTEST_SPAN, 0
        while shorter < step_tokens:
            spans.append(Span(length, min(reads, most_rows or reads, step_tokens // (shorter + 1))))
            length, shorter = 2 * length, length
        largest = max(longest_packed, SHORTEST_PACKED)
        packed_sizes = {size for size in packed if SHORTEST_PACKED <= size < largest} | {largest}
        return cls(
            tuple(sizes), tuple(sorted(wanted | {step_tokens})), tuple(spans), reads, tuple(sorted(packed_sizes))
        )

    @property
    def step(self) -> int:
        """Tokens of the largest step, and of a block of the pool."""
        return self.sizes[-1]

    @property
    def shapes(self) -> Shapes:
        """How all this pads, for estimates."""
        return Shapes(self.sizes, self.most_rows, self.packed_sizes, HEAD_ROWS)

    @property
    def most_rows(self) -> int:
        """Items of a step, at most."""
        return max(span.rows for span in self.spans)

    def size(self, tokens: int) -> int:
        """What a step of so many tokens computes."""
        return next(size for size in self.sizes if tokens <= size)

    def span(self, tokens: int) -> Span:
        """Where an item of so many tokens of its own belongs, which are at most ``step``."""
        return next(span for span in self.spans if tokens <= span.length)

    def interface(self, tokens: int) -> int:
        """Rows of the arrays that programs for so many tokens hand to one another: padded, so that they all fit."""
        return max(tokens, self.step)

    def packed(self, tokens: int, reads: int) -> tuple[int, int]:
        """Tokens and reads of the programs for a packed sequence of so many."""
        fitting = (size for size in self.packed_sizes if tokens <= size and reads <= packed_reads(size))
        size = next(fitting, self.packed_sizes[-1])
        return size, packed_reads(size)

    def head(self, head: Head, labels: int) -> HeadKey:
        """The program for so many labels; past the largest bucket, the next power of two."""
        bucket = next((bucket for bucket in LABELS if labels <= bucket), 1 << (labels - 1).bit_length())
        return HeadKey(head, HEAD_ROWS, bucket)

    def core(self, blocks: int) -> tuple[Key, ...]:
        """What is compiled before serving: enough to score anything that has few labels. blocks: of the pool."""
        steps = (key for size in self.first for key in self._of_step(size, blocks))
        read = BeforeKey(self.reads, blocks), LeaveKey(self.reads)
        own = (OwnKey(span.length, span.rows, last) for span in self.spans for last in (False, True))
        heads = (self.head(head, LABELS[0]) for head in Head)
        return tuple(dict.fromkeys((*steps, *read, StoreKey(blocks), *heads, *own)))

    def rest(self, blocks: int, *, packed: bool, dense: bool) -> tuple[Key, ...]:
        """What is compiled once serving has begun: other sizes of steps, many labels, and packed sequences.

        packed, dense: whether there are any without and with a mask.
        """
        steps = (key for size in self.sizes for key in self._of_step(size, blocks))
        heads = (self.head(head, labels) for labels in LABELS[1:] for head in Head)
        kinds = [kind for kind, wanted in ((False, packed), (True, dense)) if wanted]
        sequences = (key for kind in kinds for size in self.packed_sizes for key in _of_packed(size, kind))
        known = set(self.core(blocks))
        return tuple(key for key in dict.fromkeys((*steps, *heads, *sequences)) if key not in known)

    def _of_step(self, size: int, blocks: int) -> tuple[Key, ...]:
        """The programs of steps of so many tokens."""
        reading = ProjectKey(size, self.reads)
        return (EnterKey(size), ProjectKey(size), BeforeKey(size, blocks), LeaveKey(size), reading)


def _of_packed(size: int, dense: bool) -> tuple[Key, ...]:
    """The programs of packed sequences of so many tokens."""
    reads = packed_reads(size)
    looks = PackedKey(size, 0, dense), PackedKey(size, reads, dense)
    return (EnterKey(size), ProjectKey(size), ProjectKey(size, reads), LeaveKey(size), LeaveKey(reads), *looks)


def packed_reads(tokens: int) -> int:
    """How many scores a packed sequence of so many tokens can have read off it."""
    return max(64, 1 << (tokens // 8 - 1).bit_length())
