"""What is scored, as arrays: a group is a prefix and rows that extend it.

The sequence of row ``n`` is ``prefix[:prefix_ends[n]] ++ tokens of row n``; its score is read after the last token.
A row may be empty: then it is scored on the last token of its prefix. ``prefix_ends`` is per row because text is
concatenated before it is tokenised, and the boundary can merge (SEMANTICS: "From text to tokens").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]
"""Token ids, shape [length]."""

_HEADER = np.dtype("<i4")


class Head(StrEnum):
    """Which small program runs after the decoder's body."""

    LOGPROBS = "logprobs"
    """Label logits, and their log-probabilities over the whole vocabulary."""
    LOGITS = "logits"
    """Label logits only: enough for a softmax over the labels."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of a group, packed end to end.

    tokens: int32 [T], all rows' own tokens; lengths: int32 [N]; prefix_ends: int32 [N].
    """

    tokens: TokenIds
    lengths: TokenIds
    prefix_ends: TokenIds

    def __post_init__(self) -> None:
        if len(self.lengths) != len(self.prefix_ends):
            raise ValueError(f"{len(self.lengths)} lengths but {len(self.prefix_ends)} prefix ends")
        if int(self.lengths.sum()) != len(self.tokens):
            raise ValueError(f"lengths sum to {int(self.lengths.sum())} but there are {len(self.tokens)} tokens")

    @classmethod
    def pack(cls, rows: Sequence[Sequence[int] | TokenIds], prefix_ends: Sequence[int] | TokenIds) -> Rows:
        """Pack one array of token ids a row."""
        arrays = [np.asarray(row, np.int32) for row in rows]
        return cls(
            tokens=np.concatenate(arrays) if arrays else np.zeros(0, np.int32),
            lengths=np.array([len(row) for row in arrays], np.int32),
            prefix_ends=np.asarray(prefix_ends, np.int32),
        )

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of all parts, in order."""
        if not parts:
            return cls.pack([], [])
        return cls(
            tokens=np.concatenate([part.tokens for part in parts]),
            lengths=np.concatenate([part.lengths for part in parts]),
            prefix_ends=np.concatenate([part.prefix_ends for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def sequence_lengths(self) -> TokenIds:
        """int32 [N]: tokens of each whole sequence, its prefix included."""
        return self.prefix_ends + self.lengths

    def row(self, n: int) -> TokenIds:
        """Row ``n``'s own tokens."""
        stop = int(self.lengths[: n + 1].sum())
        return self.tokens[stop - int(self.lengths[n]) : stop]

    def slice(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop`` (exclusive)."""
        first = int(self.lengths[:start].sum())
        last = first + int(self.lengths[start:stop].sum())
        return Rows(self.tokens[first:last], self.lengths[start:stop], self.prefix_ends[start:stop])

    def to_bytes(self) -> bytes:
        """Little-endian int32: N, then lengths, prefix ends, tokens."""
        parts = (np.array([len(self)], _HEADER), self.lengths, self.prefix_ends, self.tokens)
        return b"".join(np.ascontiguousarray(part, _HEADER).tobytes() for part in parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Rows:
        """The inverse of :meth:`to_bytes`."""
        values = np.frombuffer(data, _HEADER)
        n = int(values[0])
        return cls(tokens=values[1 + 2 * n :], lengths=values[1 : 1 + n], prefix_ends=values[1 + n : 1 + 2 * n])


@dataclass(frozen=True, slots=True, eq=False)
class LabelScores:
    """What the engine says of N rows and M labels: float32 [N, M] each.

    ``logprobs`` is there where :attr:`Head.LOGPROBS` ran.
    """

    logits: npt.NDArray[np.float32]
    logprobs: npt.NDArray[np.float32] | None

    def __len__(self) -> int:
        return len(self.logits)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkWork:
    """Some rows of one group with what is asked of them. ``id`` is the caller's, and comes back in :class:`Scored`."""

    id: int
    rows: Rows
    label_token_ids: tuple[int, ...]
    head: Head


@dataclass(frozen=True, slots=True, eq=False)
class GroupWork:
    """Chunks that share a prefix, whatever job they came with. ``key`` identifies the prefix's content and owner."""

    key: str
    prefix: TokenIds
    chunks: tuple[ChunkWork, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """One chunk's outcome. ``cached_tokens``: how many tokens of its sequences did not have to be computed."""

    id: int
    scores: LabelScores
    cached_tokens: int
