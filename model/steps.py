"""Steps: runs of tokens that the device computes together, tightly packed, whosever they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from model.buckets import Buckets, Span
from model.sheets import Row
from scoring.layout import TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Extension:
    """What is computed for a row: int32 [length] tokens from position ``start`` on, behind so much of a prefix.

    row: None for a piece of a prefix itself.
    """

    tokens: TokenIds
    start: int
    row: Row | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Extensions laid out for the programs of a span: see :mod:`model.programs` for T, R, I and n.

    tokens, positions, ends: int32 [T]; starts, lengths: int32 [R]; slots: int32 [I]; places: int32 [n].
    """

    extensions: tuple[Extension, ...]
    span: Span
    tokens: TokenIds
    positions: TokenIds
    ends: TokenIds
    starts: TokenIds
    lengths: TokenIds
    slots: TokenIds
    places: TokenIds

    @classmethod
    def of(cls, extensions: Sequence[Extension], buckets: Buckets, span: Span) -> Step:
        """Lay out extensions of one span that fit into a step."""
        count = len(extensions)
        lengths = np.array([len(extension.tokens) for extension in extensions], np.int32)
        stops = np.cumsum(lengths, dtype=np.int32)
        starts, total = stops - lengths, int(stops[-1])
        behind = np.array([extension.start for extension in extensions], np.int32)
        within = np.arange(total, dtype=np.int32) - np.repeat(starts, lengths)
        size = buckets.size(total)
        return cls(
            tuple(extensions),
            span,
            _padded(np.concatenate([extension.tokens for extension in extensions]), size),
            _padded(np.repeat(behind, lengths) + within, size),
            _padded(np.repeat(behind, lengths), size),
            _padded(starts, span.rows),
            _padded(lengths, span.rows),
            _padded(np.repeat(np.arange(count, dtype=np.int32) * span.length, lengths) + within, buckets.step),
            _padded(stops - 1, buckets.reads),
        )

    @property
    def has_prefix(self) -> bool:
        """Whether any of its tokens sees anything before its own item."""
        return bool(self.ends.any())


def steps(extensions: Sequence[Extension], buckets: Buckets) -> Iterator[Step]:
    """As few steps as the order within each span allows. No extension may be longer than a step."""
    waiting: dict[Span, list[Extension]] = defaultdict(list)
    for extension in extensions:
        waiting[buckets.span(len(extension.tokens))].append(extension)
    for span in sorted(waiting, key=lambda span: span.length):
        batch: list[Extension] = []
        total = 0
        for extension in waiting[span]:
            if len(batch) == span.rows or total + len(extension.tokens) > buckets.step:
                yield Step.of(batch, buckets, span)
                batch, total = [], 0
            batch.append(extension)
            total += len(extension.tokens)
        yield Step.of(batch, buckets, span)


def _padded(values: TokenIds, size: int) -> TokenIds:
    return np.pad(values, (0, size - len(values)))
