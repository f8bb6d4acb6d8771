"""The shapes that are compiled. Every compile key is declared here, so that their set stays small and known.

A step computes a flat, tightly packed run of tokens of any requests. Norms, products and the MLP depend on the number
of tokens alone, so a few step sizes suffice. Only self-attention within an item depends on the item's length. There,
each item begins at the beginning of a row, which is padded to a length bucket: if the item began at another place, the
sums of its softmax would be computed in another order. The length of a prefix and its place in the pool are numbers at
run time, and no part of a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.score_buffer import Floats
from scoring.layout import Head, TokenIds
from scoring.planning.estimates import Shapes

ROW_FLOOR = 64
"""Rows of the smallest product. From here up to 256 rows, the bits of a row do not depend on the number of rows, in any
product of the decoder on the CPUs that were tried (``tests/model/test_row_floors.py``). With fewer rows, they do.
"""
HEAD_ROWS = 128
"""Rows of a head program. Over a vocabulary of 150,000, 8 rows take a CPU as long as these (0.1 s, measured)."""
LABEL_BUCKETS = (8, 64, 256)
SHORTEST_LENGTH_BUCKET = 8  # tokens
SHORTEST_PACKED = 256  # tokens of a packed sequence, padding included


@dataclass(frozen=True, slots=True)
class EmbedKey:
    """The embedding and the rotary angles of a step's tokens."""

    tokens: int


@dataclass(frozen=True, slots=True)
class QKVKey:
    """Queries, keys and values of a step's tokens in one layer."""

    tokens: int
    logit_rows: int = 0  # queries of that many tokens alone; 0: of all tokens


@dataclass(frozen=True, slots=True)
class PrefixAttentionKey:
    """Attention of tokens to their prefix."""

    tokens: int
    blocks: int  # of the pool


@dataclass(frozen=True, slots=True)
class SelfAttentionKey:
    """Attention of items to their own tokens."""

    length: int  # tokens that each item is padded to
    rows: int  # items
    last: bool  # queries of each item's last token alone


@dataclass(frozen=True, slots=True)
class PackedAttentionKey:
    """Attention within a packed sequence."""

    tokens: int
    logit_rows: int  # queries of that many tokens alone; 0: of all tokens
    dense: bool  # with an explicit mask


@dataclass(frozen=True, slots=True)
class OutputMLPKey:
    """The output projection of attention, and the MLP behind it."""

    tokens: int


@dataclass(frozen=True, slots=True)
class StoreKey:
    """The program that writes a step's keys and values into blocks of the pool."""

    blocks: int  # of the pool


@dataclass(frozen=True, slots=True)
class HeadKey:
    """Scores of labels from final hidden states."""

    head: Head
    rows: int
    labels: int

    def padded(self, hidden: Floats, labels: Sequence[int]) -> tuple[Floats, TokenIds]:
        """Return hidden states [rows, width] and labels [labels] in the program's shapes. Zeros fill the rest."""
        rows = np.zeros((self.rows, hidden.shape[1]), np.float32)
        rows[: len(hidden)] = hidden
        ids = np.zeros(self.labels, np.int32)
        ids[: len(labels)] = labels
        return rows, ids


Key = EmbedKey | QKVKey | PrefixAttentionKey | SelfAttentionKey | PackedAttentionKey | OutputMLPKey | StoreKey | HeadKey


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
        )

    @property
    def step_tokens(self) -> int:
        """Tokens of the largest step."""
        return self.step_sizes[-1]

    @property
    def step_blocks(self) -> int:
        """Blocks of the pool that the largest step fills."""
        return self.step_tokens // self.block_tokens

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

    def length_bucket(self, tokens: int) -> LengthBucket:
        """Return the bucket of an item with ``tokens`` own tokens, at most ``step_tokens``."""
        return next(bucket for bucket in self.length_buckets if tokens <= bucket.length)

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

    def head_key(self, head: Head, labels: int) -> HeadKey:
        """Return the program for a number of labels; past the largest bucket, of the next power of two."""
        bucket = next((bucket for bucket in LABEL_BUCKETS if labels <= bucket), 1 << (labels - 1).bit_length())
        return HeadKey(head, HEAD_ROWS, bucket)

    def core(self, blocks: int) -> tuple[Key, ...]:
        """Return what is compiled before serving: enough to score anything that has few labels. blocks: of the pool."""
        steps = (key for size in self.warm_up_sizes for key in self._step_keys(size, blocks))
        last_layer = PrefixAttentionKey(self.logit_rows, blocks), OutputMLPKey(self.logit_rows)
        self_attention = (
            SelfAttentionKey(bucket.length, bucket.rows, last)
            for bucket in self.length_buckets
            for last in (False, True)
        )
        heads = (self.head_key(head, LABEL_BUCKETS[0]) for head in Head)
        return tuple(dict.fromkeys((*steps, *last_layer, StoreKey(blocks), *heads, *self_attention)))

    def rest(self, blocks: int, *, packed: bool, dense: bool) -> tuple[Key, ...]:
        """Return what is compiled beside the first work: other step sizes, many labels, and packed sequences.

        packed, dense: whether packed sequences may be computed without a mask and with one.
        """
        steps = (key for size in self.step_sizes for key in self._step_keys(size, blocks))
        heads = (self.head_key(head, labels) for labels in LABEL_BUCKETS[1:] for head in Head)
        masks = [mask for mask, wanted in ((False, packed), (True, dense)) if wanted]
        sequences = (key for mask in masks for size in self.packed_sizes for key in _packed_keys(size, mask))
        known = set(self.core(blocks))
        return tuple(key for key in dict.fromkeys((*steps, *heads, *sequences)) if key not in known)

    def _step_keys(self, size: int, blocks: int) -> tuple[Key, ...]:
        last_layer = QKVKey(size, self.logit_rows)
        return (EmbedKey(size), QKVKey(size), PrefixAttentionKey(size, blocks), OutputMLPKey(size), last_layer)


def _packed_keys(size: int, dense: bool) -> tuple[Key, ...]:
    rows = packed_logit_rows(size)
    attention = PackedAttentionKey(size, 0, dense), PackedAttentionKey(size, rows, dense)
    return (EmbedKey(size), QKVKey(size), QKVKey(size, rows), OutputMLPKey(size), OutputMLPKey(rows), *attention)


def packed_logit_rows(tokens: int) -> int:
    """Return how many items a packed sequence of ``tokens`` tokens can hold."""
    return max(64, 1 << (tokens // 8 - 1).bit_length())
