"""Compiles programs for a target, estimates workloads by them, and prints the results."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from model.architecture.config import DecoderConfig
from model.platforms import Platform
from model.programs.gathering import GatherKey
from model.programs.label_head import HeadKey
from model.whole_steps.forward import Key
from settings.engine import EngineSettings
from tools.tpu.compiler import Compiled, Compiler
from tools.tpu.cost import Part, UnknownFrequencyError, cycles, parts, sent_bytes
from tools.tpu.frequencies import Visits, frequencies_of
from tools.tpu.kernels import Schedules, kernel_cycles
from tools.tpu.programs import Call, Program, WeightlessEngine
from tools.tpu.workloads import Measured

CALIBRATION = 4_096
"""Rows and columns of the matrices whose product shows how severe the estimate is."""

HEADING = (
    f"{'compile':>8} {'arguments':>11} {'temporary':>11} {'outputs':>11} {'estimate':>11}  "
    "program; kernels and other custom calls"
)

PACKED = "packed_segment", "packed_dense"
"""The workloads whose estimates are compared with each other."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A workload, and the programs that the engine calls for it."""

    measured: Measured
    engine: WeightlessEngine
    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of a call."""

    seconds: float
    exchanged: float  # of these, seconds in which chips exchange numbers


class Report:
    """What was found so far. Every line is said at once."""

    def __init__(self, compiler: Compiler, platform: Platform, say: Callable[[str], None]) -> None:
        self._compiler = compiler
        self._platform = platform
        self._target = compiler.target
        self._say = say
        self._schedules = Schedules(compiler.target)
        self._compiled: dict[str, Compiled | None] = {}  # by the program and the shapes of its arguments
        self._first_calls: dict[str, tuple[WeightlessEngine, Call | None]] = {}  # of a workload, by the same
        self.resident_bytes = 0  # of weights and pool
        self.programs: list[dict[str, Any]] = []
        self.workloads: dict[str, dict[str, float]] = {}
        self.comparisons: dict[str, float] = {}
        self.misfits: list[str] = []  # why programs do not compile or fit

    def calibrate(self) -> None:
        """Print how pessimistic the estimate is, by a product whose share of the peak is known."""
        product = self._compiler.calibration(CALIBRATION)
        seconds = cycles(product.module, {}) / self._target.clock
        share = 2 * CALIBRATION**3 / seconds / self._target.peak
        self._say(
            f"{self._target.name}: the estimate of a bf16 product of {CALIBRATION}^3 comes to {share:.0%} of the peak. "
            "All estimates leave out stalls and launches."
        )

    def plan(self, workloads: Sequence[Measured], config: DecoderConfig, settings: EngineSettings) -> list[Planned]:
        """Return what the engine calls for those workloads that fit into the model's context."""
        planned = []
        for measured in workloads:
            if measured.algorithm == "packed" and config.recurrence is not None:
                self._say(f"{measured.name}: recurrent layers compute no packed sequences")
                continue
            if measured.workload.longest > config.context:
                self._say(f"{measured.name} ({measured.workload}): longer than the context of {config.context} tokens")
                continue
            changed = settings.model_copy(update=dict(measured.settings))
            engine = WeightlessEngine(config, changed, self._platform, measured.algorithm)
            calls = engine.calls(measured.workload.work(config.vocabulary))
            planned.append(Planned(measured, engine, calls))
            for call in calls:
                self._first_calls.setdefault(_identity(engine.program(call.key)), (engine, call))
        return planned

    def warm_up(self, config: DecoderConfig, settings: EngineSettings) -> None:
        """Compile what a worker compiles before it serves."""
        engine = WeightlessEngine(config, settings, self._platform)
        self.resident_bytes = engine.resident_bytes
        self._say(
            f"weights and pool: {_megabytes(engine.resident_bytes)} of {_megabytes(self._target.usable_memory)} usable"
        )
        self._say(HEADING)
        for key in engine.warm_up():
            self._program(engine, key)

    def estimate(self, planned: Planned, config: DecoderConfig) -> None:
        """Estimate a workload by the programs that the engine calls for it, if each can be estimated."""
        measured, engine, calls = planned.measured, planned.engine, planned.calls
        programs = {call.key: self._program(engine, call.key) for call in calls}
        visited, exchanged = Visits(), 0.0
        seconds: dict[Key, float] = defaultdict(float)
        for call in calls:
            compiled = programs[call.key]
            if compiled is None:
                self._say(f"{measured.name}: no estimate")
                return
            try:
                taken, visits = self._seconds(compiled, call, engine)
            except UnknownFrequencyError as error:
                self._say(f"{measured.name}: no estimate of {call.key}: {error}")
                return
            seconds[call.key] += taken.seconds
            exchanged += taken.exchanged
            visited += visits
        total = sum(seconds.values())
        flop = measured.workload.necessary_flop(config).total
        found: dict[str, float] = {
            "estimated_ms": round(total * 1e3, 2),
            "items_per_s": round(measured.workload.items / total, 1),
            "share_of_peak": round(flop / total / (self._target.peak * self._target.chips), 3),
        }
        parts = ", ".join(
            f"{count} x {engine.program(key).name}: {seconds[key] / count * 1e6:,.0f} us"
            for key, count in Counter(call.key for call in calls).items()
        )
        self._say(f"{measured.name} ({measured.workload}): {total * 1e3:.2f} ms; {parts}")
        if self._target.chips > 1:
            found["share_of_exchanges"] = round(exchanged / total, 3)
            self._say(f"    {exchanged / total:.0%} of it are exchanges between chips")
        if visited.all_tiles:
            found |= {"tiles_visited": visited.tiles, "tiles": visited.all_tiles}
            self._say(f"    {visited.tiles} of {visited.all_tiles} tiles are visited")
        self.workloads[measured.name] = found

    def compare(self) -> None:
        """Say how many times as fast packed sequences are without an explicit mask, if both were estimated."""
        if all(name in self.workloads for name in PACKED):
            segment, dense = (self.workloads[name]["estimated_ms"] for name in PACKED)
            self.comparisons["packed_dense_over_segment"] = round(dense / segment, 2)
            self._say(f"packed_dense takes {dense / segment:.2f} times as long as packed_segment")

    def as_json(self) -> str:
        """Return the last line."""
        found = {
            "target": self._target.name,
            "usable_bytes": int(self._target.usable_memory),
            "resident_bytes": self.resident_bytes,
            "programs": self.programs,
            "workloads": self.workloads,
            **self.comparisons,
            "fits": not self.misfits,
        }
        return json.dumps(found)

    def seconds_in(self, kernel: str, call: Call, engine: WeightlessEngine) -> tuple[float, float]:
        """Return the estimated seconds of a call, and how many of them are in a kernel."""
        compiled = self._program(engine, call.key)
        assert compiled is not None, "the program compiles"
        found, _ = self._parts(compiled, call, engine)
        total = sum(part.total for part in found)
        inside = sum(part.total for part in found if part.instruction.kernel == kernel)
        return total / self._target.clock, inside / self._target.clock

    def _seconds(self, compiled: Compiled, call: Call, engine: WeightlessEngine) -> tuple[Estimate, Visits]:
        found, visits = self._parts(compiled, call, engine)
        total = sum(part.total for part in found)
        exchanged = sum(part.total for part in found if sent_bytes(part.instruction) is not None)
        return Estimate(total / self._target.clock, exchanged / self._target.clock), visits

    def _parts(self, compiled: Compiled, call: Call, engine: WeightlessEngine) -> tuple[list[Part], Visits]:
        frequencies, visits = frequencies_of(call, engine.config, engine.block_tokens)
        kernels = partial(kernel_cycles, self._schedules.of(compiled.module), frequencies)
        target = self._target
        found = parts(compiled.module, frequencies, kernels, target.cycle_bytes, target.cycle_ring_bytes)
        return list(found), visits

    def _program(self, engine: WeightlessEngine, key: Key) -> Compiled | None:
        """Compile a program and its kernels, and say a line about it, unless that was done before."""
        program = engine.program(key)
        known = _identity(program)
        if known not in self._compiled:
            self._compiled[known] = self._compile(key, program, engine)
        return self._compiled[known]

    def _compile(self, key: Key, program: Program, engine: WeightlessEngine) -> Compiled | None:
        options = self._platform.compiler_options
        try:
            compiled = self._compiler.compile(program.function, program.arguments, program.donated, options)
        except Exception as error:  # whatever the compiler raises, the other programs are still of interest
            self.misfit(f"{program.name} does not compile: {str(error).splitlines()[0]}")
            return None
        self._schedules.add([compiled.module])
        estimated = self._of_first_call(_identity(program), key, compiled, engine)
        sizes = compiled.argument_bytes, compiled.temporary_bytes, compiled.output_bytes
        calls = ", ".join(f"{count} {name}" for name, count in sorted(compiled.custom_calls.items())) or "none"
        columns = " ".join(f"{_megabytes(size):>11}" for size in sizes)
        shown = "none" if estimated is None else f"{estimated * 1e6:,.0f} us"
        self._say(f"{compiled.seconds:>6.1f} s {columns} {shown:>11}  {program.name}; {calls}")
        copies = compiled.copies(engine.arrays)
        for copy in copies:
            self._say(f"    copies the {copy}")
        needed = max(engine.resident_bytes, compiled.argument_bytes) + compiled.temporary_bytes + compiled.output_bytes
        if needed > self._target.usable_memory:
            self.misfit(f"{program.name} needs {_megabytes(needed)}")
        self.programs.append(
            {
                "name": program.name,
                "compile_s": round(compiled.seconds, 1),
                "argument_bytes": compiled.argument_bytes,
                "temporary_bytes": compiled.temporary_bytes,
                "output_bytes": compiled.output_bytes,
                "needed_bytes": needed,
                "custom_calls": dict(compiled.custom_calls),
                "copies": copies,
                "estimated_us": None if estimated is None else round(estimated * 1e6, 1),
            }
        )
        return compiled

    def _of_first_call(self, known: str, key: Key, compiled: Compiled, engine: WeightlessEngine) -> float | None:
        """Return the estimated seconds of the first call that a workload makes of a program.

        Of programs that no workload calls, only heads and what gathers their states have an estimate: they do the same
        in every call.
        """
        is_same = isinstance(key, HeadKey | GatherKey)
        engine, call = self._first_calls.get(known, (engine, Call(key, ()) if is_same else None))
        try:
            return None if call is None else self._seconds(compiled, call, engine)[0].seconds
        except UnknownFrequencyError:
            return None

    def misfit(self, line: str) -> None:
        """Say why something does not compile or fit."""
        self.misfits.append(line)
        self._say(line)


def _identity(program: Program) -> str:
    """Return what programs have in common that need not be compiled twice."""
    return f"{program.name} {tuple((leaf.shape, str(leaf.dtype)) for leaf in program.arguments)}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
