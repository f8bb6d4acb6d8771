"""Compiles programs for a target, estimates workloads by them, and says what is found."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from functools import partial

from model.architecture.config import DecoderConfig
from model.compiling.compiler import Compiled, Compiler
from model.compiling.cost import Frequencies, UnknownFrequencyError, cycles
from model.compiling.frequencies import Visits, frequencies_of
from model.compiling.kernels import Schedules, kernel_cycles
from model.compiling.programs import Program, WeightlessEngine
from model.compiling.workloads import Measured
from model.platforms import Platform
from settings.engine import EngineSettings

CALIBRATION = 4_096
"""Rows and columns of the matrices whose product shows how severe the estimate is."""

HEADING = f"{'compile':>8} {'arguments':>11} {'temporary':>11} {'outputs':>11}  program; kernels and other custom calls"


class Report:
    """What was found so far. Every line is said at once."""

    def __init__(self, compiler: Compiler, platform: Platform, say: Callable[[str], None]) -> None:
        self._compiler = compiler
        self._platform = platform
        self._target = compiler.target
        self._say = say
        self._schedules = Schedules(compiler.target)
        self._compiled: dict[str, Compiled | None] = {}  # by the program and the shapes of its arguments
        self.workloads: dict[str, dict[str, float]] = {}
        self.misfits: list[str] = []  # why programs do not compile or fit

    def calibrate(self) -> None:
        """Say how severe the estimate is, by a product whose share of the peak is known."""
        product = self._compiler.calibration(CALIBRATION)
        seconds = cycles(product.module, {}) / self._target.clock
        share = 2 * CALIBRATION**3 / seconds / self._target.peak
        self._say(
            f"{self._target.name}: the estimate of a bf16 product of {CALIBRATION}^3 comes to {share:.0%} of the peak. "
            "All estimates leave out stalls and launches."
        )

    def warm_up(self, config: DecoderConfig, settings: EngineSettings) -> None:
        """Compile what a worker compiles before it serves."""
        engine = WeightlessEngine(config, settings, self._platform)
        self._say(
            f"weights and pool: {_megabytes(engine.resident_bytes)} of {_megabytes(self._target.usable_memory)} usable"
        )
        self._say(HEADING)
        for key in engine.warm_up():
            self._program(engine, key)

    def estimate(self, measured: Measured, config: DecoderConfig, settings: EngineSettings) -> None:
        """Estimate a workload by the programs that the engine calls for it, if each can be estimated."""
        if measured.workload.longest > config.context:
            self._say(f"{measured.name} ({measured.workload}): longer than the context of {config.context} tokens")
            return
        changed = settings.model_copy(update=dict(measured.settings))
        engine = WeightlessEngine(config, changed, self._platform, measured.algorithm)
        calls = engine.calls(measured.workload.work(config.vocabulary))
        programs = {call.key: self._program(engine, call.key) for call in calls}
        visited = Visits()
        seconds: dict[Hashable, float] = defaultdict(float)
        for call in calls:
            compiled = programs[call.key]
            if compiled is None:
                self._say(f"{measured.name}: no estimate")
                return
            frequencies, visits = frequencies_of(call, config, engine.block_tokens)
            visited += visits
            try:
                seconds[call.key] += self._seconds(compiled, frequencies)
            except UnknownFrequencyError as error:
                self._say(f"{measured.name}: no estimate of {call.key}: {error}")
                return
        total = sum(seconds.values())
        flop = measured.workload.necessary_flop(config).total
        self.workloads[measured.name] = {
            "estimated_ms": round(total * 1e3, 2),
            "items_per_s": round(measured.workload.items / total, 1),
            "share_of_peak": round(flop / total / self._target.peak, 3),
        }
        parts = ", ".join(
            f"{count} x {key} of {seconds[key] / count * 1e6:,.0f} us"
            for key, count in Counter(call.key for call in calls).items()
        )
        self._say(f"{measured.name} ({measured.workload}): {total * 1e3:.2f} ms; {parts}")
        if visited.all_tiles:
            self._say(f"    {visited.tiles} of {visited.all_tiles} tiles are visited")

    def as_json(self) -> str:
        """Return the last line."""
        return json.dumps({"target": self._target.name, "workloads": self.workloads, "fits": not self.misfits})

    def _seconds(self, compiled: Compiled, frequencies: Frequencies) -> float:
        kernels = partial(kernel_cycles, self._schedules.of(compiled.module), frequencies)
        return cycles(compiled.module, frequencies, kernels) / self._target.clock

    def _program(self, engine: WeightlessEngine, key: Hashable) -> Compiled | None:
        """Compile a program and its kernels, and say a line about it, unless that was done before."""
        program = engine.program(key)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in program.arguments)
        known = f"{program.name} {shapes}"
        if known not in self._compiled:
            self._compiled[known] = self._compile(program, engine)
        return self._compiled[known]

    def _compile(self, program: Program, engine: WeightlessEngine) -> Compiled | None:
        options = self._platform.compiler_options
        try:
            compiled = self._compiler.compile(program.function, program.arguments, program.donated, options)
        except Exception as error:  # whatever the compiler raises, the other programs are still of interest
            self._misfit(f"{program.name} does not compile: {str(error).splitlines()[0]}")
            return None
        self._schedules.add([compiled.module])
        sizes = compiled.argument_bytes, compiled.temporary_bytes, compiled.output_bytes
        calls = ", ".join(f"{count} {name}" for name, count in sorted(compiled.custom_calls.items())) or "none"
        columns = " ".join(f"{_megabytes(size):>11}" for size in sizes)
        self._say(f"{compiled.seconds:>6.1f} s {columns}  {program.name}; {calls}")
        for copy in compiled.copies(engine.arrays):
            self._say(f"    copies the {copy}")
        needed = max(engine.resident_bytes, compiled.argument_bytes) + compiled.temporary_bytes + compiled.output_bytes
        if needed > self._target.usable_memory:
            self._misfit(f"{program.name} needs {_megabytes(needed)}")
        return compiled

    def _misfit(self, line: str) -> None:
        self.misfits.append(line)
        self._say(line)


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
