"""Steps: tightly packed runs of tokens, of any requests, that the device computes together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from model.buckets import Buckets, LengthBucket
from model.forward import Extension
from scoring.layout import TokenIds
from scoring.planning.bin_packing import first_fit_decreasing


@dataclass(frozen=True, slots=True, eq=False)
class SelfAttentionBatch:
    """The items of one length bucket in a step, as self-attention programs take them.

    See :mod:`model.layerwise.self_attention`.

    All arrays are int32; those of R entries are padded to the bucket's rows.
    """

    bucket: LengthBucket
    starts: TokenIds  # [R]: where in the step each item begins
    lengths: TokenIds  # [R]: tokens of each item
    logit_indices: TokenIds  # [R]: which of the step's logit positions is the item's; ``step_tokens`` for padding
    slots: TokenIds  # [I]: item x bucket.length + offset in the item, of each token; -1 for tokens of other buckets


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Extensions laid out for programs: see :mod:`model.layerwise.decoder` for T and n. All arrays are int32."""

    extensions: tuple[Extension, ...]
    tokens: TokenIds  # [T]
    positions: TokenIds  # [T]
    prefix_ends: TokenIds  # [T]: how many tokens of the prefix each token sees
    logit_positions: TokenIds  # [n]: the last token of each extension
    self_attention: tuple[SelfAttentionBatch, ...]  # one for each length bucket in the step

    @classmethod
    def of(cls, extensions: Sequence[Extension], buckets: Buckets) -> Step:
        """Lay out extensions that fit into a step. Those of one length bucket have to be neighbours."""
        lengths = np.array([len(extension.tokens) for extension in extensions], np.int32)
        stops = np.cumsum(lengths, dtype=np.int32)
        starts, total = stops - lengths, int(stops[-1])
        prefix_ends = np.repeat(np.array([extension.start for extension in extensions], np.int32), lengths)
        offsets = np.arange(total, dtype=np.int32) - np.repeat(starts, lengths)
        size = buckets.step_size(total)
        batches = []
        for bucket, numbers in groupby(range(len(extensions)), lambda n: buckets.length_bucket(int(lengths[n]))):
            items = np.array(list(numbers), np.int32)
            tokens = slice(int(starts[items[0]]), int(stops[items[-1]]))
            slots = np.full(buckets.step_tokens, -1, np.int32)
            item_slots = np.arange(len(items), dtype=np.int32) * bucket.length
            slots[tokens] = offsets[tokens] + np.repeat(item_slots, lengths[items])
            batches.append(
                SelfAttentionBatch(
                    bucket,
                    _padded(starts[items], bucket.rows),
                    _padded(lengths[items], bucket.rows),
                    _padded(items, bucket.rows, fill=buckets.step_tokens),
                    slots,
                )
            )
        return cls(
            tuple(extensions),
            _padded(np.concatenate([extension.tokens for extension in extensions]), size),
            _padded(prefix_ends + offsets, size),
            _padded(prefix_ends, size),
            _padded(stops - 1, buckets.logit_rows),
            tuple(batches),
        )

    @property
    def has_prefix(self) -> bool:
        """Whether any token of the step sees a prefix."""
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


def _padded(values: TokenIds, size: int, fill: int = 0) -> TokenIds:
    return np.pad(values, (0, size - len(values)), constant_values=fill)
