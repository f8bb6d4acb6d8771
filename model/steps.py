"""Steps: runs of tokens that the device computes together, tightly packed, whosever they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from model.buckets import Buckets, Span
from model.score_buffer import Row
from scoring.layout import TokenIds
from scoring.planning.bin_packing import first_fit_decreasing


@dataclass(frozen=True, slots=True, eq=False)
class Extension:
    """What is computed for a row: int32 [length] tokens from position ``start`` on, behind so much of a prefix.

    row: None for a piece of a prefix itself.
    """

    tokens: TokenIds
    start: int
    row: Row | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """Items of one span in a step, for the programs that show them their own tokens: see :mod:`model.programs`.

    starts, lengths, reads: int32 [R], where in the step an item begins, its tokens, and which of the step's reads it
    is; slots: int32 [I], item x span + place in it for each token of these items, -1 for others.
    """

    span: Span
    starts: TokenIds
    lengths: TokenIds
    reads: TokenIds
    slots: TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Extensions laid out for programs: see :mod:`model.programs` for T, R, I and n.

    tokens, positions, ends: int32 [T]; places: int32 [n]; own: one a span.
    """

    extensions: tuple[Extension, ...]
    tokens: TokenIds
    positions: TokenIds
    ends: TokenIds
    places: TokenIds
    own: tuple[Own, ...]

    @classmethod
    def of(cls, extensions: Sequence[Extension], buckets: Buckets) -> Step:
        """Lay out extensions that fit into a step, those of one span beside one another."""
        lengths = np.array([len(extension.tokens) for extension in extensions], np.int32)
        stops = np.cumsum(lengths, dtype=np.int32)
        starts, total = stops - lengths, int(stops[-1])
        behind = np.array([extension.start for extension in extensions], np.int32)
        within = np.arange(total, dtype=np.int32) - np.repeat(starts, lengths)
        size = buckets.size(total)
        own = []
        for span, numbers in groupby(range(len(extensions)), lambda number: buckets.span(int(lengths[number]))):
            items = np.array(list(numbers), np.int32)
            of_items = slice(int(starts[items[0]]), int(stops[items[-1]]))
            slots = np.full(buckets.step, -1, np.int32)
            slots[of_items] = within[of_items] + np.repeat(
                np.arange(len(items), dtype=np.int32) * span.length, lengths[items]
            )
            own.append(
                Own(
                    span,
                    _padded(starts[items], span.rows),
                    _padded(lengths[items], span.rows),
                    _padded(items, span.rows, fill=buckets.step),
                    slots,
                )
            )
        return cls(
            tuple(extensions),
            _padded(np.concatenate([extension.tokens for extension in extensions]), size),
            _padded(np.repeat(behind, lengths) + within, size),
            _padded(np.repeat(behind, lengths), size),
            _padded(stops - 1, buckets.reads),
            tuple(own),
        )

    @property
    def has_prefix(self) -> bool:
        """Whether any of its tokens sees anything before its own item."""
        return bool(self.ends.any())


def steps(extensions: Sequence[Extension], buckets: Buckets) -> Iterator[Step]:
    """Full steps, the longest extensions first. No extension may be longer than a step."""
    lengths = np.array([len(extension.tokens) for extension in extensions], np.int32)
    for together in first_fit_decreasing(lengths, buckets.step, buckets.most_rows):
        yield Step.of([extensions[number] for number in together.tolist()], buckets)


def _padded(values: TokenIds, size: int, fill: int = 0) -> TokenIds:
    return np.pad(values, (0, size - len(values)), constant_values=fill)
