"""The final schedule of a Pallas kernel, as the TPU compiler dumps it, and how many cycles a run of it takes.

A schedule is a list of *bundles*, each of which takes one cycle when nothing stalls. The steps of the kernel's grid are
turns of a loop, which turns twice more: blocks are copied in a turn before they are needed, and out a turn after. A
conditional region, which Pallas makes of ``pl.when``, is skipped by a branch forward, which takes effect five bundles
later.

Names of a kernel's parts in :data:`tools.tpu.cost.Frequencies`: ``NAME/region0``, ``NAME/region1``, … are its
conditional regions in the order of the schedule, and the number is the share of the enclosing loop's turns in which the
region runs (without a number: all of them). ``NAME/loop0``, … are its loops with a computed end in the same order, the
steps of a computed grid among them, and the number is that of the turns each time that the loop is reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tools.tpu.cost import Frequencies, UnknownFrequencyError

COPYING_TURNS = 2  # of a grid's loop, in which blocks are only copied: one before its steps, and one behind them
BRANCH_DELAY = 5  # bundles from a branch to the first that it skips
SMALLEST_REGION = 16
"""Bundles of a region that has a name. Smaller ones start and await copies, and always count."""
GUARD = 0.9
"""A region that is so much of a loop's body guards the grid's first and last turns, and always counts."""
AROUND_LOOP = 64
"""A region with fewer bundles beside a loop with a computed end guards that from turning at all, and counts, too."""

_STAGE = "iteration index, stage = "  # what the compiler calls the counter of a grid's loop
_BUNDLE = re.compile(r"\s*(?:0x)?([0-9a-f]+)\s+(?:[A-Z]{2})?\s*:")
_BEGIN = re.compile(r"Start(?:/End)?(?: empty)? region (\d+)")
_BRANCH = re.compile(r"sbr\.rel \(!?(%\w+)\) target = \$region(\d+)")
_EXIT = re.compile(r"\{?\s*(%\w+) = scmp\.[^;]*, (%\w+|\d+) /\* loop exit test \*/")


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring bundles: a conditional region, or a loop."""

    begin: int
    end: int  # behind the last bundle
    is_loop: bool = False
    turns: int | None = None  # of a loop with a constant end

    def __len__(self) -> int:
        return self.end - self.begin

    def contains(self, other: Span) -> bool:
        """Return whether another span lies in this one. Of two with the same bundles, the loop lies in the region."""
        if (self.begin, self.end) == (other.begin, other.end):
            return other.is_loop and not self.is_loop
        return self.begin <= other.begin and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Schedule:
    """The bundles of a kernel, its loops and its conditional regions, in order."""

    bundles: int
    loops: tuple[Span, ...]
    regions: tuple[Span, ...]  # those that have names

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read a dump of final bundles. Raises ValueError for anything else."""
        starts: dict[str, int] = {}
        branches: list[tuple[int, str, str]] = []  # the bundle, the predicate and the region that it branches to
        limits: dict[str, str] = {}  # of a loop's exit, by its predicate
        grids: set[int] = set()  # bundles with which the loop of a grid begins
        last = -1
        for line in text.splitlines():
            found = _BUNDLE.match(line)
            if found:
                last = int(found.group(1), 16)
            if last < 0:
                continue
            starts |= {region: last for region in _BEGIN.findall(line) if region not in starts}
            branches += [(last, predicate, region) for predicate, region in _BRANCH.findall(line)]
            limits |= dict(_EXIT.findall(line))
            grids |= {last} if _STAGE in line else set()
        if last < 0:
            raise ValueError("this is not a dump of a kernel's bundles")
        spans = set(_spans(starts, branches, limits, grids, last + 1))
        loops = [span for span in spans if span.is_loop]
        regions = [span for span in spans if not span.is_loop and len(span) >= SMALLEST_REGION]
        named = (region for region in regions if not any(_guards(region, loop) for loop in loops))
        return cls(last + 1, _ordered(loops), _ordered(named))

    def cycles(self, kernel: str, frequencies: Frequencies) -> float:
        """Return the bundles of one run of the kernel.

        Raises UnknownFrequencyError if a loop with a computed end has no number, or a number has no region or loop.
        """
        computed = [loop for loop in self.loops if loop.turns is None]
        names = {f"{kernel}/region{n}": region for n, region in enumerate(self.regions)}
        names |= {f"{kernel}/loop{n}": loop for n, loop in enumerate(computed)}
        given = {name for name in frequencies if name.startswith(f"{kernel}/")}
        missing = {name for name, span in names.items() if span.is_loop} - given
        if missing or not given <= names.keys():
            found = ", ".join(f"{name} of {len(span)} bundles" for name, span in names.items())
            raise UnknownFrequencyError(f"the kernel {kernel!r} has {found or 'no such parts'}; known: {sorted(given)}")
        times = {span: frequencies.get(name, 1.0) for name, span in names.items()}
        times |= {loop: float(loop.turns) for loop in self.loops if loop.turns is not None}
        whole = Span(0, self.bundles)
        times[whole] = 1.0
        spans = (whole, *self.loops, *self.regions)
        return sum(_own(span, spans) * _times(span, spans, times) for span in spans)


def _spans(
    starts: dict[str, int],
    branches: list[tuple[int, str, str]],
    limits: dict[str, str],
    grids: set[int],
    end: int,
) -> Iterator[Span]:
    for bundle, predicate, region in branches:
        target = starts.get(region)
        if target is None:
            continue
        if target <= bundle:
            limit = limits.get(predicate, "")
            turns = int(limit) - (COPYING_TURNS if target in grids else 0) if limit.isdigit() else None
            yield Span(target, min(bundle + BRANCH_DELAY, end), True, turns)
        elif target > bundle + BRANCH_DELAY:
            yield Span(bundle + BRANCH_DELAY, target)


def _guards(region: Span, loop: Span) -> bool:
    if loop.contains(region):
        return len(region) >= GUARD * len(loop)
    return loop.turns is None and region.contains(loop) and len(region) - len(loop) < AROUND_LOOP


def _ordered(spans: Iterable[Span]) -> tuple[Span, ...]:
    return tuple(sorted(spans, key=lambda span: (span.begin, -span.end)))


def _own(span: Span, spans: Iterable[Span]) -> int:
    """Return the bundles of a span that are in no smaller one."""
    inside = [other for other in spans if span.contains(other)]
    outermost = [one for one in inside if not any(other.contains(one) for other in inside)]
    return len(span) - sum(map(len, outermost))


def _times(span: Span, spans: Iterable[Span], times: dict[Span, float]) -> float:
    """Return how often a span runs: its own number times those of all spans around it."""
    result = times[span]
    for other in spans:
        if other.contains(span):
            result *= times[other]
    return result
