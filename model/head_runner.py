"""From final hidden states to chunks' scores: heads run over rows that were computed in whatever company."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from model.buckets import HEAD_ROWS, Buckets
from model.forward import Forward
from model.score_buffer import Floats, Row
from scoring.layout import Head, Scored

READ_TOKENS = 2_048
"""Tokens, padding included, after which a head runs over what the body has computed since the last one. A head over a
large vocabulary costs as much for a few rows as for many, but a finished chunk should not wait for long either."""

T = TypeVar("T")


Read = tuple[Row, Floats]
"""A row and its final hidden state, float32 [width]."""


class Reader:
    """Runs heads over rows as they come in."""

    def __init__(self, forward: Forward, buckets: Buckets, width: int) -> None:
        self._forward = forward
        self._buckets = buckets
        self._width = width
        self._unread: list[Read] = []
        self._tokens = 0

    def take(self, found: Sequence[Read], tokens: int) -> Iterator[Scored]:
        """Rows that a step of so many tokens has brought; yields the chunks that are finished, if a head ran."""
        self._unread += found
        self._tokens += tokens
        if len(self._unread) >= HEAD_ROWS or self._tokens >= READ_TOKENS:
            yield from self.rest()

    def rest(self) -> Iterator[Scored]:
        """Run a head for each set of labels asked for by the rows not read yet; yields the chunks finished by it."""
        unread, self._unread, self._tokens = self._unread, [], 0
        asked: dict[tuple[Head, tuple[int, ...]], list[Read]] = defaultdict(list)
        for row, hidden in unread:
            asked[row.sheet.chunk.head, row.sheet.chunk.label_token_ids].append((row, hidden))
        for (head, label_ids), part in asked.items():
            for few in batches(part, HEAD_ROWS):
                self._run_head(head, label_ids, few)
        for sheet in {id(row.sheet): row.sheet for row, _ in unread}.values():
            if not sheet.missing:
                yield sheet.scored()

    def _run_head(self, head: Head, label_ids: tuple[int, ...], part: Sequence[Read]) -> None:
        """Score at most HEAD_ROWS rows and write the scores where they belong."""
        key = self._buckets.head(head, len(label_ids))
        labels = np.zeros(key.labels, np.int32)
        labels[: len(label_ids)] = label_ids
        hidden = np.zeros((key.rows, self._width), np.float32)
        for n, (_, state) in enumerate(part):
            hidden[n] = state
        outputs = [np.asarray(output) for output in self._forward.read(key, hidden, labels)]
        for n, (row, _) in enumerate(part):
            row.sheet.write(row.index, [output[n, : len(label_ids)] for output in outputs])


def batches(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Runs of at most ``size``."""
    for first in range(0, len(rows), size):
        yield rows[first : first + size]
