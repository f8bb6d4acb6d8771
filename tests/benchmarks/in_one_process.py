"""A benchmark whose parts share a process, which imports and compiles once: ``-m tests.benchmarks.in_one_process``.

The first argument names the benchmark, and the others are its own. That parts get processes of their own is tested in
test_device.py by parts that measure nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from benchmarks import engine
from benchmarks.device import __main__ as device
from benchmarks.device.findings import Finding, Part, findings_of
from benchmarks.device.speed import second_process
from benchmarks.machine import bf16_gflops


def here(part: Part, until: float) -> Iterator[Finding]:
    """Run a part in this process, unless it is about another one."""
    return findings_of(part, until) if part.function is second_process else part.function(*part.arguments)


def called(what: Callable[..., object], *arguments: object) -> object:
    """Call a function in this process."""
    return what(*arguments)


def main() -> int:
    """Run the benchmark, and return its exit status. A small product says how fast the machine is."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(device, "findings_of", here)
        patches.setattr(engine, "alone", called)
        patches.setattr(engine, "measure_rate", lambda: bf16_gflops(1, (64, 64, 64)))
        return {"device": device.main, "engine": engine.main}[sys.argv.pop(1)]() or 0


if __name__ == "__main__":
    sys.exit(main())
