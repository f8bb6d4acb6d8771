"""How far the stored rates are off on this machine, measured on the work that it does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

SAMPLE_SECONDS = 5.0  # work, in measured seconds, between two comparisons: an estimate takes up to some milliseconds
TELLING_SECONDS = 0.25  # measured work from which on the ratio says something of other work
MEMORY_SECONDS = 60.0  # a comparison made before this many seconds of work weighs 1/e of a present one

T = TypeVar("T")


class Calibration:
    """The ratio of measured to estimated seconds, in which recent work weighs more.

    Comparisons are weighted by their duration, so short work, whose measurements are noisy, weighs little. The first
    work is compared, and then one call of the engine for every :data:`SAMPLE_SECONDS` of work.
    """

    def __init__(self) -> None:
        self.ratio = 1.0  # what an estimate by the stored rates has to be multiplied with; 1 before the first sample
        self._measured = 0.0  # seconds, decayed
        self._estimated = 0.0  # of the same work, by the stored rates
        self._since_sample = math.inf  # seconds of work since the last comparison

    @property
    def measured_ratio(self) -> float | None:
        """The ratio, or None before so much work was compared that it says something of other work.

        Short work takes longer than estimated, because calls have costs of their own.
        """
        return self.ratio if self._measured >= TELLING_SECONDS else None

    def is_due(self, seconds: float) -> bool:
        """Count ``seconds`` of work that was done; return whether it should be compared with an estimate."""
        self._since_sample += seconds
        return self._since_sample >= SAMPLE_SECONDS

    def compare(self, estimated: float, measured: float) -> None:
        """Take in the estimated seconds, by the stored rates, and the measured seconds of the same work."""
        kept = math.exp(-self._since_sample / MEMORY_SECONDS)
        self._since_sample = 0.0
        self._measured = self._measured * kept + measured
        self._estimated = self._estimated * kept + estimated
        self.ratio = self._measured / self._estimated


class Stopwatch:
    """Counts the time that a generator spends computing, and not the time in which its caller has control."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self._clock = clock

    def timed(self, items: Iterator[T]) -> Iterator[T]:
        """Yield the same items."""
        while True:
            started = self._clock()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.seconds += self._clock() - started
            yield item
