"""Where the scores of a chunk's items come from: an equal item is scored once, and some scores may be known before.

Items are equal if all that is computed for them is equal: the query, their own tokens, what stands behind them, and how
much of the query they see. Equal work has equal bits (docs/algorithms.md), so a score that is copied is the one that
would have been computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scoring.layout import Continuations, LabelScores, Rows, TokenIds

if TYPE_CHECKING:
    from scoring.layout import Head

_INT = np.dtype("<i4")
_FLOAT = np.dtype("<f4")
_HEADER = np.dtype([("items", "<i4"), ("known", "<i4"), ("labels", "<i4"), ("columns", "<i4"), ("provenance", "<i8")])
_MIX = np.random.default_rng(2023).integers(1, 2**63, 4_096, np.uint64) | np.uint64(1)
"""What tokens are multiplied with, by their place in a row, to tell most rows apart with a few operations on arrays."""

CONTENT_BYTES = 16
"""Of the hash of what is computed for an item. Two of a billion items have the same with a probability of 1e-21."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Scores that need not be computed, as long as what computed them is what would compute them now."""

    scores: LabelScores  # of K items; more than one item of a chunk may have the same
    provenance: int  # the id of the provenance of all of them, without algorithms
    algorithms: tuple[str, ...] = ()  # by which they were computed, in alphabetical order
    stored_provenance: int | None = None  # the id of that provenance with these algorithms, where it is recorded


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """Where the scores of a chunk's N items come from."""

    places: TokenIds
    """int32 [N]: of each item, the first one in the chunk that is equal to it, perhaps itself; ``-1 - k`` if its score
    is the one of number ``k`` that is known."""
    known: Known | None = None

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def all_computed(cls, items: int) -> Sources:
        """Return the sources of so many items of which each is computed."""
        return cls(np.arange(items, dtype=np.int32))

    @property
    def computed(self) -> npt.NDArray[np.bool_]:
        """bool [N]: which items are computed."""
        found: npt.NDArray[np.bool_] = self.places == np.arange(len(self.places))
        return found

    @property
    def reused(self) -> int:
        """How many items are not computed."""
        return len(self) - int(self.computed.sum())

    @property
    def is_known(self) -> bool:
        """Whether all scores are known."""
        return bool((self.places < 0).all())

    def with_known(self, is_known: npt.NDArray[np.bool_], known: Known) -> Sources:
        """Return the sources once more scores are known, from the provenance of those that already are.

        is_known: bool [N], true for items that would be computed and need not be; known: their scores, in their order.
        """
        number = np.cumsum(is_known) - 1
        if self.known is not None:
            number += len(self.known.scores)
            names = tuple(sorted({*self.known.algorithms, *known.algorithms}))
            known = replace(known, scores=LabelScores.join([self.known.scores, known.scores]), algorithms=names)
        first = np.maximum(self.places, 0)
        is_found = (self.places >= 0) & is_known[first]
        return Sources(np.where(is_found, -1 - number[first], self.places).astype(np.int32), known)

    def without_known(self) -> Sources:
        """Return the sources with everything computed that is known, each equal item once."""
        if self.known is None:
            return self
        places = self.places.copy()
        own = np.flatnonzero(places < 0)
        _, firsts, of_each = np.unique(places[own], return_index=True, return_inverse=True)
        places[own] = own[firsts][of_each]
        return Sources(places)

    def spread(self, scores: LabelScores | None) -> LabelScores:
        """Return the scores of all items. scores: those of the computed items, in their order; None: all are known."""
        known = None if self.known is None else self.known.scores
        parts = [part for part in (scores, known) if part is not None]
        computed = 0 if scores is None else len(scores)
        number = np.cumsum(self.computed) - 1  # of each computed item among them
        return LabelScores.join(parts).part(
            np.where(self.places < 0, computed - 1 - self.places, number[np.maximum(self.places, 0)])
        )

    def to_bytes(self) -> bytes:
        """Serialise: a header, then the places, and of known scores their columns and the names of the algorithms."""
        if self.known is None:
            return np.array((len(self), 0, 0, 0, 0), _HEADER).tobytes() + _bytes(self.places, _INT)
        scores = self.known.scores
        columns = columns_of(scores)
        head = (len(self), len(scores), scores.logits.shape[1], columns.shape[1], self.known.provenance)
        parts = (np.array(head, _HEADER).tobytes(), _bytes(self.places, _INT), _bytes(columns, _FLOAT))
        return b"".join(parts) + ",".join(self.known.algorithms).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Sources:
        """Read what :meth:`to_bytes` wrote."""
        items, known, labels, columns, provenance = np.frombuffer(data, _HEADER, 1)[0].tolist()
        places = np.frombuffer(data, _INT, items, _HEADER.itemsize)
        if not known:
            return cls(places)
        place = _HEADER.itemsize + places.nbytes
        values = np.frombuffer(data, _FLOAT, known * columns, place).reshape(known, columns)
        names = data[place + values.nbytes :].decode()
        return cls(places, Known(scores_of(values, labels), provenance, tuple(names.split(",")) if names else ()))


def columns_of(scores: LabelScores) -> npt.NDArray[np.float32]:
    """Return scores as one array with a row for each item: logits, log-probabilities, and the top one, as they exist.

    :func:`scores_of` reads it: there are as many columns as labels, twice as many, or one more than that.
    """
    parts = [scores.logits]
    if scores.logprobs is not None:
        parts.append(scores.logprobs)
        if scores.top_logprobs is not None:
            parts.append(scores.top_logprobs[:, None])
    return np.concatenate(parts, axis=1)


def scores_of(columns: npt.NDArray[np.float32], labels: int) -> LabelScores:
    """Read what :func:`columns_of` made of scores with so many labels."""
    count = columns.shape[1]
    return LabelScores(
        columns[:, :labels],
        columns[:, labels : 2 * labels] if count > labels else None,
        columns[:, 2 * labels] if count > 2 * labels else None,
    )


def equal_items(rows: Rows, continuations: Continuations | None) -> Sources | None:
    """Return which items of a chunk are equal; None if all of them differ."""
    if len(rows) < 2 or len(np.unique(_fast_hashes(rows))) == len(rows):
        return None
    first: dict[bytes, int] = {}
    places = [first.setdefault(content, n) for n, content in enumerate(_contents(blake2b(), rows, continuations))]
    return Sources(np.array(places, np.int32)) if len(first) < len(rows) else None


def _fast_hashes(rows: Rows) -> npt.NDArray[np.uint64]:
    """Return numbers that differ for most rows that differ, uint64 [N]."""
    lengths = rows.lengths.astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    within = np.arange(len(rows.tokens)) - np.repeat(starts, lengths)
    mixed = (rows.tokens.astype(np.uint64) + np.uint64(1)) * _MIX[within % len(_MIX)]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    of_tokens, of_ends = sums[starts + lengths] - sums[starts], rows.prefix_ends.astype(np.uint64) * _MIX[0]
    found: npt.NDArray[np.uint64] = of_tokens + of_ends
    return found


def contents(
    prefix: TokenIds,
    rows: Rows,
    continuations: Continuations | None,
    label_token_ids: tuple[int, ...],
    head: Head,
    *,
    top: bool,
) -> list[bytes]:
    """Return a hash for each row of all that is computed for it, but for what computes it.

    label_token_ids: of labels of one token; with continuations, they are not looked at.
    """
    labels = label_token_ids if continuations is None else ()
    start = blake2b(f"{head.value} {top} {len(prefix)} {continuations is not None} {labels}\n".encode())
    start.update(_bytes(prefix, _INT))
    return _contents(start, rows, continuations)


def _contents(start: blake2b, rows: Rows, continuations: Continuations | None) -> list[bytes]:
    """Return a hash for each row with what stands behind it. start: has taken in what they have in common."""
    ends = np.cumsum(rows.lengths, dtype=np.int64) * _INT.itemsize
    heads = memoryview(_bytes(np.stack([rows.prefix_ends, rows.lengths], axis=1), _INT))
    tokens = memoryview(_bytes(rows.tokens, _INT))
    behind = [b""] * len(rows) if continuations is None else _behind(continuations, len(rows))
    found: list[bytes] = []
    size, begin = 2 * _INT.itemsize, 0
    for n, (end, more) in enumerate(zip(ends.tolist(), behind, strict=True)):
        one = start.copy()
        one.update(heads[n * size : (n + 1) * size])
        one.update(tokens[begin:end])
        one.update(more)
        found.append(one.digest()[:CONTENT_BYTES])
        begin = end
    return found


def _behind(continuations: Continuations, rows: int) -> list[bytes]:
    """Return the continuations of each row as bytes."""
    labels = len(continuations) // max(1, rows)
    numbers = np.stack([continuations.lengths, continuations.kept, continuations.divisors], axis=1)
    ends = np.concatenate([[0], np.cumsum(continuations.lengths, dtype=np.int64)]).tolist()
    return [
        _bytes(numbers[n * labels : (n + 1) * labels], _INT)
        + _bytes(continuations.tokens[ends[n * labels] : ends[(n + 1) * labels]], _INT)
        for n in range(rows)
    ]


def _bytes(values: npt.NDArray[np.generic], dtype: np.dtype[np.generic]) -> bytes:
    return np.ascontiguousarray(values, dtype).tobytes()
