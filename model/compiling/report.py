"""Compiles programs for a target, and says what the compiler says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from model.compiling.compiler import Compiled, Compiler
from model.compiling.cost import Frequencies, cycles
from model.compiling.kernels import Schedules, kernel_cycles
from model.compiling.programs import Program
from model.compiling.targets import Target

CALIBRATION = 4_096
"""Rows and columns of the matrices whose product shows how severe the estimate is."""


class DoesNotFitError(Exception):
    """Programs that do not compile, or that need more memory than the target has."""


@dataclass(slots=True)
class Report:
    """What was found."""

    target: Target
    resident_bytes: int  # weights and pool
    calibration_share: float  # of the peak, that the estimate of a product of CALIBRATION^3 comes to
    lines: list[str] = field(default_factory=list)
    workloads: dict[str, Mapping[str, float]] = field(default_factory=dict)
    misfits: list[str] = field(default_factory=list)  # why programs do not compile or fit

    def as_json(self) -> str:
        """Return the last line."""
        return json.dumps({"target": self.target.name, "workloads": self.workloads, "fits": not self.misfits})


class Estimates:
    """Compiled programs, and how long they take by the compiler's estimate."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._schedules = Schedules(compiler.target)

    def compile(self, program: Program, options: Mapping[str, str | bool]) -> Compiled:
        """Compile a program, and its kernels alone."""
        compiled = self._compiler.compile(program.function, program.arguments, program.donated, options)
        self._schedules.add([compiled.module])
        return compiled

    def seconds(self, compiled: Compiled, frequencies: Frequencies) -> float:
        """Return the estimated time of one run. Raises :class:`model.compiling.cost.UnknownFrequencyError`."""
        kernels = partial(kernel_cycles, self._schedules.of(compiled.module), frequencies)
        return cycles(compiled.module, frequencies, kernels) / self._compiler.target.clock


def calibration_share(compiler: Compiler) -> float:
    """Return the share of the target's peak that a large product reaches by the compiler's estimate."""
    product = compiler.calibration(CALIBRATION)
    return 2 * CALIBRATION**3 / (cycles(product.module, {}) / compiler.target.clock) / compiler.target.peak


def compile_programs(
    compiler: Compiler,
    programs: Sequence[Program],
    arrays: Mapping[str, tuple[int, ...]],
    resident_bytes: int,
    options: Mapping[str, str | bool],
    say: Callable[[str], None],
) -> Report:
    """Compile programs one after another, and say a line for each.

    arrays: large ones that no program should copy, by name; resident_bytes: what is in memory all the time.
    """
    estimates = Estimates(compiler)
    report = Report(compiler.target, resident_bytes, calibration_share(compiler))
    say(
        f"{compiler.target.name}: the estimate of a bf16 product of {CALIBRATION}^3 comes to "
        f"{report.calibration_share:.0%} of the peak; all estimates leave out stalls and launches"
    )
    say(f"weights and pool: {_megabytes(resident_bytes)} of {_megabytes(compiler.target.usable_memory)} usable")
    say(HEADING)
    for program in programs:
        try:
            compiled = estimates.compile(program, options)
        except Exception as error:  # whatever the compiler raises, the other programs are still of interest
            report.misfits.append(f"{program.name} does not compile: {str(error).splitlines()[0]}")
            say(report.misfits[-1])
            continue
        say(_line(program, compiled, estimates.seconds(compiled, program.frequencies)))
        for copy in compiled.copies(arrays):
            say(f"    copies the {copy}")
        needed = max(resident_bytes, compiled.argument_bytes) + compiled.temporary_bytes + compiled.output_bytes
        if needed > compiler.target.usable_memory:
            report.misfits.append(f"{program.name} needs {_megabytes(needed)}")
            say(report.misfits[-1])
    return report


HEADING = f"{'compile':>8} {'arguments':>10} {'temporary':>10} {'outputs':>10} {'estimate':>12}  program; custom calls"


def _line(program: Program, compiled: Compiled, seconds: float) -> str:
    sizes = compiled.argument_bytes, compiled.temporary_bytes, compiled.output_bytes
    calls = ", ".join(f"{count} {name}" for name, count in sorted(compiled.custom_calls.items())) or "none"
    columns = " ".join(f"{_megabytes(size):>10}" for size in sizes)
    return f"{compiled.seconds:>6.1f} s {columns} {seconds * 1e6:>9.1f} us  {program.name}; {calls}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
