"""The shapes that are compiled. All sizes of programs come from here, so that their set stays small and known.

A step computes a flat, tightly packed run of tokens of any requests. Norms, products and the MLP depend on the number
of tokens alone, so a few step sizes suffice. Only self-attention within an item depends on the item's length. There,
each item begins at the beginning of a row, which is padded to a length bucket: if the item began at another place, the
sums of its softmax would be computed in another order. The length of a prefix and its place in the pool are numbers at
run time, and no part of a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scoring.planning.estimates import Shapes

ROW_FLOOR = 64
"""Rows of the smallest product. From here up to 256 rows, the bits of a row do not depend on the number of rows, in any
product of the decoder on the CPUs that were tried (``tests/model/isolation/test_row_floors.py``). With fewer rows, they
do.
"""
HEAD_ROWS = 128
"""Rows of a head program. Over a vocabulary of 150,000, 8 rows take a CPU as long as these (0.1 s, measured)."""
LABEL_BUCKETS = (8, 64, 256)
SHORTEST_LENGTH_BUCKET = 8  # tokens
SHORTEST_PACKED = 256  # tokens of a packed sequence, padding included


@dataclass(frozen=True, slots=True)
class LengthBucket:
    """Items of at most ``length`` own tokens that do not fit into the next smaller bucket."""

    length: int
    rows: int  # items of this bucket in a step, at most


@dataclass(frozen=True, slots=True)
class Buckets:
    """The shapes of one model."""

    step_sizes: tuple[int, ...]  # tokens that a step may compute, ascending
    warm_up_sizes: tuple[int, ...]  # the step sizes that are compiled before serving
    length_buckets: tuple[LengthBucket, ...]  # ascending
    logit_rows: int  # tokens that the last layer of a step computes: one an item
    packed_sizes: tuple[int, ...]  # tokens that a packed sequence may compute, ascending
    block_tokens: int  # of a block of the pool; the largest step is one block or a multiple
    has_row_floor: bool  # see :meth:`model.platforms.Platform.has_row_floor`

    @classmethod
    def of(
        cls,
        step_tokens: int,
        *,
        one_size: bool = False,
        first: Sequence[int] = (),
        max_rows: int | None = None,
        packed: Sequence[int] = (),
        max_packed_tokens: int = SHORTEST_PACKED,
        block_tokens: int | None = None,
    ) -> Buckets:
        """Return steps of 64, 128, … ``step_tokens`` tokens, a power of two, and length buckets of 8, 16, … tokens.

        one_size: all steps have the largest size, for platforms where bits of a row depend on the number of rows.
        first: numbers of tokens; the steps that hold so many are compiled before serving, besides the largest.
        max_rows: how many items a step has at most. packed: sizes of packed sequences in tokens.
        ``max_packed_tokens`` is always one of the sizes, and larger ones are left out. block_tokens: as many as a step
        has, unless given.
        """
        step_sizes = [step_tokens]
        while step_sizes[0] > ROW_FLOOR and not one_size:
            step_sizes.insert(0, step_sizes[0] // 2)
        warm_up_sizes = {
            next(size for size in step_sizes if tokens <= size) for tokens in first if tokens <= step_tokens
        }
        logit_rows = max(ROW_FLOOR, step_tokens // 4)
        length_buckets: list[LengthBucket] = []
        length, shorter = SHORTEST_LENGTH_BUCKET, 0
        while shorter < step_tokens:
            rows = min(logit_rows, max_rows or logit_rows, step_tokens // (shorter + 1))
            length_buckets.append(LengthBucket(length, rows))
            length, shorter = 2 * length, length
        largest = max(max_packed_tokens, SHORTEST_PACKED)
        packed_sizes = {size for size in packed if SHORTEST_PACKED <= size < largest} | {largest}
        return cls(
            tuple(step_sizes),
            tuple(sorted(warm_up_sizes | {step_tokens})),
            tuple(length_buckets),
            logit_rows,
            tuple(sorted(packed_sizes)),
            block_tokens or step_tokens,
            has_row_floor=not one_size,
        )

    @property
    def step_tokens(self) -> int:
        """Tokens of the largest step."""
        return self.step_sizes[-1]

    @property
    def grain(self) -> int:
        """Tokens at whose multiples a sequence may be cut into steps, wherever else it is cut: no bit changes.

        As far as bits depend on the number of rows, or on what a step begins with, it is the largest step.
        """
        return min(ROW_FLOOR, self.step_tokens) if self.has_row_floor else self.step_tokens

    @property
    def stored_buckets(self) -> tuple[LengthBucket, ...]:
        """The length buckets of what is stored: none is shorter than a cut, where bits do not depend on cuts."""
        shortest = self.grain if self.has_row_floor else 0
        return tuple(bucket for bucket in self.length_buckets if bucket.length >= shortest)

    @property
    def shapes(self) -> Shapes:
        """The sizes that estimates need."""
        return Shapes(self.step_sizes, self.max_rows, self.packed_sizes, HEAD_ROWS)

    @property
    def max_rows(self) -> int:
        """Items of a step, at most."""
        return max(bucket.rows for bucket in self.length_buckets)

    def step_size(self, tokens: int) -> int:
        """Return the number of tokens that a step of ``tokens`` tokens computes, padding included."""
        return next(size for size in self.step_sizes if tokens <= size)

    def padded_rows(self, tokens: int) -> int:
        """Return the rows to which queries, keys, values and attention outputs are padded between programs.

        The padding makes attention programs independent of the step's size.
        """
        return max(tokens, self.step_tokens)

    def packed_shape(self, tokens: int, rows: int) -> tuple[int, int]:
        """Return the tokens and logit rows of the programs for a packed sequence of ``rows`` items."""
        fitting = (size for size in self.packed_sizes if tokens <= size and rows <= packed_logit_rows(size))
        size = next(fitting, self.packed_sizes[-1])
        return size, packed_logit_rows(size)


def label_bucket(labels: int) -> int:
    """Return the number of labels that a head computes for so many; past the largest bucket, the next power of two."""
    return next((bucket for bucket in LABEL_BUCKETS if labels <= bucket), 1 << (labels - 1).bit_length())


def packed_logit_rows(tokens: int) -> int:
    """Return how many items a packed sequence of ``tokens`` tokens can hold."""
    return max(64, 1 << (tokens // 8 - 1).bit_length())
