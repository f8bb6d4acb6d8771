"""The items of a job as they are stored and claimed: in chunks, each of which is finished as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scoring.layout import Continuations, Places, Rows, TokenIds
from scoring.sources import Sources


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """Rows with their continuations, and where the tokens of each begin, so that they can be cut often."""

    rows: Rows
    continuations: Continuations | None
    tokens: Places  # of the rows
    targets: Places  # of the continuations

    @classmethod
    def of(cls, rows: Rows, continuations: Continuations | None) -> Cuts:
        of_targets = np.zeros(0, np.int32) if continuations is None else continuations.lengths
        return cls(rows, continuations, *(_places(lengths) for lengths in (rows.lengths, of_targets)))

    def part(self, start: int, stop: int) -> tuple[Rows, Continuations | None]:
        """Return the rows from ``start`` to ``stop`` with their continuations."""
        own = self.rows.part(start, stop, self.tokens)
        if self.continuations is None:
            return own, None
        return own, self.continuations.of_rows(start, stop, len(self.rows), self.targets)


def _places(lengths: TokenIds) -> Places:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive items of a job that are stored, claimed and finished together."""

    first_item: int  # index of the first one among the job's items
    rows: Rows  # one row per item
    continuations: Continuations | None = None  # behind the rows; None: each row is scored with one-token labels
    # Of the computed rows together, without a prefix that they share: see scoring.work.
    work: int = field(kw_only=True)
    sources: Sources | None = field(default=None, kw_only=True)  # None: each item is computed

    @property
    def is_known(self) -> bool:
        """Whether all scores are known, so that no worker has to compute any."""
        return self.sources is not None and self.sources.is_known

    @property
    def reused(self) -> int:
        """How many items are not computed."""
        return 0 if self.sources is None else self.sources.reused

    @property
    def computed(self) -> tuple[Rows, Continuations | None]:
        """The rows that are computed, with their continuations."""
        return computed_part(self.rows, self.continuations, self.sources)

    @property
    def tokens(self) -> int:
        """How many tokens are stored: those of the rows and the targets."""
        return len(self.rows.tokens) + (0 if self.continuations is None else len(self.continuations.tokens))

    @property
    def prompt_tokens(self) -> int:
        """How many tokens all sequences have: see :func:`sequence_tokens`."""
        return sequence_tokens(self.rows, self.continuations)

    @property
    def longest_sequence(self) -> int:
        """How many tokens the longest sequence has."""
        longest = int(self.rows.sequence_lengths.max(initial=0))
        if self.continuations is None:
            return longest
        return max(longest, int(self.continuations.sequence_lengths.max(initial=0)))

    @property
    def highest_token(self) -> int:
        """The highest token id of the rows and the targets; 0 if there are none."""
        highest = int(self.rows.tokens.max(initial=0))
        return highest if self.continuations is None else max(highest, int(self.continuations.tokens.max(initial=0)))

    @property
    def nbytes(self) -> int:
        """How many bytes the arrays take."""
        return self.rows.nbytes + (0 if self.continuations is None else self.continuations.nbytes)


def sequence_tokens(rows: Rows, continuations: Continuations | None) -> int:
    """Return how many tokens the sequences of rows have, prefix included. Targets count behind their row, each once."""
    own = int(rows.sequence_lengths.sum())
    return own if continuations is None else own + len(continuations.tokens)


def computed_part(
    rows: Rows, continuations: Continuations | None, sources: Sources | None
) -> tuple[Rows, Continuations | None]:
    """Return the rows of a chunk that are computed, with their continuations. sources: None: all rows are."""
    if sources is None:
        return rows, continuations
    wanted = sources.computed
    tokens = rows.tokens[np.repeat(wanted, rows.lengths)]
    own = Rows(tokens, rows.lengths[wanted], rows.prefix_ends[wanted])
    if continuations is None:
        return own, None
    of_labels = np.repeat(wanted, len(continuations) // max(1, len(rows)))
    targets = continuations.tokens[np.repeat(of_labels, continuations.lengths)]
    arrays = (continuations.lengths, continuations.kept, continuations.divisors)
    return own, Continuations(targets, *(array[of_labels] for array in arrays))
