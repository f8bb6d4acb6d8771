"""What is scored, as arrays: a group is a prefix and the rows that extend it.

The sequence of row ``n`` is ``prefix[:prefix_ends[n]]`` followed by the row's own tokens. Its score is read after its
last token; for an empty row, that is the last token of its part of the prefix. The rows of a group may use parts of the
prefix of different lengths: query and item are joined as text before they are tokenized, and so the end of the query
may merge with the beginning of an item into one token (docs/tokenization.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]  # token ids, shape [length]

_HEADER = np.dtype("<i4")


class Head(StrEnum):
    """What the engine computes from the final hidden states."""

    LOGPROBS = "logprobs"  # label logits, and their log-probabilities over the whole vocabulary
    LOGITS = "logits"  # label logits only, which are enough for a softmax over the labels


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The tokens of N rows behind one prefix, packed end to end."""

    tokens: TokenIds  # int32 [T]: the rows' own tokens, without the prefix
    lengths: TokenIds  # int32 [N]: number of own tokens of each row
    prefix_ends: TokenIds  # int32 [N]: number of leading tokens of the prefix that belong to each row's sequence

    def __post_init__(self) -> None:
        if len(self.lengths) != len(self.prefix_ends):
            raise ValueError(f"{len(self.lengths)} lengths but {len(self.prefix_ends)} prefix ends")
        if int(self.lengths.sum()) != len(self.tokens):
            raise ValueError(f"lengths sum to {int(self.lengths.sum())} but there are {len(self.tokens)} tokens")

    @classmethod
    def pack(cls, rows: Sequence[Sequence[int] | TokenIds], prefix_ends: Sequence[int] | TokenIds) -> Rows:
        """Pack rows given as one sequence of token ids each."""
        arrays = [np.asarray(row, np.int32) for row in rows]
        return cls(
            tokens=np.concatenate(arrays) if arrays else np.zeros(0, np.int32),
            lengths=np.array([len(row) for row in arrays], np.int32),
            prefix_ends=np.asarray(prefix_ends, np.int32),
        )

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Concatenate several packed arrays of rows."""
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
    def nbytes(self) -> int:
        """How many bytes the arrays take."""
        return int(self.tokens.nbytes + self.lengths.nbytes + self.prefix_ends.nbytes)

    @property
    def sequence_lengths(self) -> TokenIds:
        """int32 [N]: number of tokens of each whole sequence, prefix included."""
        return self.prefix_ends + self.lengths

    def to_bytes(self) -> bytes:
        """Serialise as little-endian int32: N, then lengths, prefix ends and tokens."""
        parts = (np.array([len(self)], _HEADER), self.lengths, self.prefix_ends, self.tokens)
        return b"".join(np.ascontiguousarray(part, _HEADER).tobytes() for part in parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Rows:
        """Read what :meth:`to_bytes` wrote."""
        values = np.frombuffer(data, _HEADER)
        n = int(values[0])
        return cls(tokens=values[1 + 2 * n :], lengths=values[1 : 1 + n], prefix_ends=values[1 + n : 1 + 2 * n])


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive items of a job that are stored, claimed and finished together."""

    first_item: int  # index of the first one among the job's items
    rows: Rows  # one row per item


@dataclass(frozen=True, slots=True, eq=False)
class LabelScores:
    """What the engine computed for N rows and M labels."""

    logits: npt.NDArray[np.float32]  # [N, M]
    logprobs: npt.NDArray[np.float32] | None  # [N, M]: over the whole vocabulary; None unless Head.LOGPROBS ran

    def __len__(self) -> int:
        return len(self.logits)

    def impossible_row(self) -> int | None:
        """Return the first row with NaN or +inf, which no sound model gives; None if there is no such row.

        A logit or a log-probability of -inf is possible.
        """
        impossible = np.zeros(len(self), np.bool_)
        for values in (self.logits, self.logprobs):
            if values is not None:
                impossible |= ~(values < np.inf).all(axis=1)
        return int(impossible.argmax()) if impossible.any() else None


@dataclass(frozen=True, slots=True, eq=False)
class ChunkWork:
    """The rows of one chunk, and what to compute for them."""

    id: int  # chosen by the caller; the result carries it, too
    rows: Rows
    label_token_ids: tuple[int, ...]
    head: Head


@dataclass(frozen=True, slots=True, eq=False)
class GroupWork:
    """Chunks, perhaps of several jobs, that share a prefix."""

    owner: str  # tenant and tokenizer: work on a prefix is shared among groups of one owner only
    prefix: TokenIds
    chunks: tuple[ChunkWork, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ScoredChunk:
    """The scores of one chunk."""

    id: int  # as of its ChunkWork
    scores: LabelScores
    cached_tokens: int  # tokens of its sequences that did not have to be computed
    algorithms: tuple[str, ...] = ()  # that its rows were computed by, in alphabetical order
