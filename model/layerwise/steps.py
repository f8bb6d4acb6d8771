"""Steps: tightly packed runs of tokens, of any requests, that the device computes together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model.buckets import Buckets, LengthBucket
from model.forward import AttentionRows, Extension
from scoring.layout import TokenIds
from scoring.planning.bin_packing import first_fit_decreasing


@dataclass(frozen=True, slots=True, eq=False)
class SelfAttentionBatch:
    """The items of one length bucket in a step, as self-attention programs take them.

    See :mod:`model.layerwise.self_attention`.

    All arrays are int32; those of R entries are padded to the bucket's rows. A tail, with the tokens that it continues,
    is an item here: see :class:`model.forward.AttentionRows`.
    """

    bucket: LengthBucket
    places: TokenIds  # [R, bucket.length]: where in the step each item's tokens are; behind the item, any place
    lengths: TokenIds  # [R]: tokens of each item
    logit_indices: TokenIds  # [R]: which of the step's logit positions is the item's; ``step_tokens`` for padding
    slots: TokenIds  # [I]: item x bucket.length + offset in the item, of each of its own tokens; -1 for other tokens


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Extensions laid out for programs: see :mod:`model.layerwise.decoder` for T and n. All arrays are int32."""

    tokens: TokenIds  # [T]
    positions: TokenIds  # [T]
    prefix_ends: TokenIds  # [T]: how many tokens each token sees in the pool
    logit_positions: TokenIds  # [n]: the last token of each extension
    self_attention: tuple[SelfAttentionBatch, ...]
    """One for each length bucket in the step; with tails, as many as their rows take. What sees itself in the pool is
    laid out for recurrent layers alone."""
    in_pool: bool = False
    """Whether all tokens see themselves and what comes before them in the pool. So the attention of what is stored has
    the same bits wherever a sequence is cut."""
    windows: TokenIds | None = None
    """Of models with recurrent layers, the inputs of the convolution of each token, [T, inputs]: its own last, and
    those before it in order. The first inputs - 1 numbers are those that the prefix keeps, and then come the tokens."""

    @classmethod
    def of(cls, extensions: Sequence[Extension], buckets: Buckets, inputs: int = 0) -> Step:
        """Lay out extensions that fit into a step. inputs: of recurrent layers' convolution; 0: there are none.

        What is stored is alone.
        """
        lengths = np.array([len(extension.tokens) for extension in extensions], np.int64)
        stops = np.cumsum(lengths)
        prefix_ends = np.repeat(np.array([extension.start for extension in extensions], np.int32), lengths)
        size = buckets.step_size(int(stops[-1]))
        rows = AttentionRows.of(extensions, stops - lengths)
        positions, is_stored = prefix_ends + rows.offsets(), len(extensions[0].stored) > 0
        in_pool = is_stored and buckets.has_row_floor
        return cls(
            _padded(np.concatenate([extension.tokens for extension in extensions]), size),
            _padded(positions, size),
            _padded(positions + 1 if in_pool else prefix_ends, size),
            _padded(stops - 1, buckets.logit_rows),
            tuple(_batches(rows, buckets, buckets.stored_buckets if is_stored else buckets.length_buckets)),
            in_pool,
            _padded(inputs - 1 + rows.windows(inputs), size) if inputs else None,
        )

    @property
    def has_prefix(self) -> bool:
        """Whether any token of the step sees something in the pool."""
        return bool(self.prefix_ends.any())


def filled(extensions: Sequence[Extension], buckets: Buckets) -> Iterator[tuple[Extension, ...]]:
    """Fill steps with extensions of one prefix, the longest first. No extension may be longer than a step.

    Those that are read at several tokens come last.
    """
    for kind in ([one for one in extensions if one.read <= 1], [one for one in extensions if one.read > 1]):
        lengths = np.array([len(extension.tokens) for extension in kind], np.int32)
        for together in first_fit_decreasing(lengths, buckets.step_tokens, buckets.max_rows):
            yield tuple(kind[number] for number in together.tolist())


def tokens_read(extensions: Sequence[Extension]) -> TokenIds:
    """Return which tokens of a step are read, int32 [n]."""
    stops = np.cumsum([len(extension.tokens) for extension in extensions], dtype=np.int32)
    reads = np.array([extension.read for extension in extensions], np.int32)
    return np.repeat(stops - np.cumsum(reads), reads) + np.arange(reads.sum(), dtype=np.int32)


def _batches(
    rows: AttentionRows, buckets: Buckets, length_buckets: Sequence[LengthBucket]
) -> Iterator[SelfAttentionBatch]:
    """Yield the rows of a step by their length buckets, as many of a bucket at a time as its program takes."""
    lengths, offsets = rows.lengths, rows.offsets()
    row_of_token = np.repeat(np.arange(len(lengths)), rows.own)
    bucket_of = np.searchsorted([bucket.length for bucket in length_buckets], lengths)
    for number in np.unique(bucket_of).tolist():
        bucket = length_buckets[number]
        of_bucket = np.flatnonzero(bucket_of == number)
        for first in range(0, len(of_bucket), bucket.rows):
            together = of_bucket[first : first + bucket.rows]
            first_slots = np.full(len(lengths), -1)
            first_slots[together] = np.arange(len(together)) * bucket.length
            of_token = first_slots[row_of_token]
            slots = np.where(of_token >= 0, of_token + offsets, -1)
            places = rows.places(np.arange(bucket.length)[None])[together]
            yield SelfAttentionBatch(
                bucket,
                np.minimum(_padded(places, bucket.rows), buckets.step_tokens - 1),
                _padded(lengths[together], bucket.rows),
                _padded(together, bucket.rows, fill=buckets.step_tokens),
                _padded(slots, buckets.step_tokens, fill=-1),
            )


def _padded(values: npt.NDArray[np.integer[Any]], size: int, fill: int = 0) -> TokenIds:
    """Return int32 [size, …] with ``fill`` behind the values."""
    # Not by numpy.pad, which takes twenty times as long: this is done several times for every step.
    padded = np.full((size, *values.shape[1:]), fill, np.int32)
    padded[: len(values)] = values
    return padded
