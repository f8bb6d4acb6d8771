"""How fast this worker scores, measured as it goes: a claim takes what can be done in a few seconds."""

from __future__ import annotations

import math

FIRST_RATE = 2_000.0
"""Tokens per second to begin with. Modest: a first claim that is too small costs little, one too large a long wait."""

MEMORY_SECONDS = 12.0
"""Work this long ago weighs 1/e of what is done now."""


class Throughput:
    """Tokens computed (as :mod:`scoring.work` counts) per second of work, recent work weighing more.

    Time is what is averaged over, so many tiny batches, which are slow for their size, weigh no more than they last.
    """

    def __init__(self, first_rate: float = FIRST_RATE) -> None:
        self._tokens = first_rate
        self._seconds = 1.0
        self._guessed = True

    @property
    def tokens_per_second(self) -> float:
        """The present estimate."""
        return self._tokens / self._seconds

    @property
    def measured_rate(self) -> float | None:
        """The same once there is something measured in it: a first guess is nothing to tell others."""
        return None if self._guessed else self.tokens_per_second

    def measured(self, tokens: int, seconds: float) -> None:
        """Take in that so many tokens took so long."""
        self._guessed = False
        kept = math.exp(-seconds / MEMORY_SECONDS)
        self._tokens = self._tokens * kept + tokens
        self._seconds = self._seconds * kept + seconds

    def budget(self, seconds: float) -> int:
        """Tokens that take about so long; at least one."""
        return max(1, round(self.tokens_per_second * seconds))
