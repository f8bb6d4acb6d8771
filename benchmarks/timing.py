"""Measures the time and memory of something in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a workload takes."""

    items: int
    seconds: float  # median of the repeats
    peak_memory_gb: float  # of the process
    computed_tokens: int | None = None  # in one run, padding included; None if unknown

    @property
    def items_per_s(self) -> float:
        """Items by the median of the seconds."""
        return self.items / self.seconds


def timed(run: Callable[[], object], repeats: int, items: int, warm_up: Callable[[], object]) -> Measured:
    """Warm up, then time the repeats."""
    warm_up()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
        print(f"  {seconds[-1]:.2f} s", file=sys.stderr)
    return Measured(items, statistics.median(seconds), peak_memory_gb())


def peak_memory_gb() -> float:
    """Return the peak resident memory of this process, in 10^9 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def alone(what: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function in a fresh process, so that its memory is its own. It may start processes itself."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(what, *arguments, **named).result()
