"""Measures how fast this worker scores, so that a claim takes an amount of work that lasts a few seconds."""

from __future__ import annotations

import math

INITIAL_RATE = 2_000.0  # tokens per second; low, because a first claim that is too large delays its jobs for long
TIME_CONSTANT_SECONDS = 12.0  # work done this long ago has 1/e of the weight of recent work


class Throughput:
    """Exponentially weighted tokens per second of scoring, in tokens as :mod:`scoring.work` counts them.

    The weights are over time, not over batches, so many tiny batches, which are slow for their size, count only for as
    long as they took.
    """

    def __init__(self, initial_rate: float = INITIAL_RATE) -> None:
        self._tokens = initial_rate
        self._seconds = 1.0
        self._is_guess = True  # nothing was recorded yet

    @property
    def tokens_per_second(self) -> float:
        """The present estimate."""
        return self._tokens / self._seconds

    @property
    def measured_rate(self) -> float | None:
        """The present estimate; None as long as it is only the initial guess, which is not worth reporting."""
        return None if self._is_guess else self.tokens_per_second

    def record(self, tokens: int, seconds: float) -> None:
        """Add a measurement: so many tokens took so many seconds."""
        self._is_guess = False
        kept = math.exp(-seconds / TIME_CONSTANT_SECONDS)
        self._tokens = self._tokens * kept + tokens
        self._seconds = self._seconds * kept + seconds

    def budget(self, seconds: float) -> int:
        """Return the number of tokens that take about ``seconds``; at least one."""
        return max(1, round(self.tokens_per_second * seconds))
