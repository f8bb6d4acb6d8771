"""The schedules of Pallas kernels, which the compiler tells only if it dumps them while it compiles.

The dump of a whole decoder takes gigabytes. So each kernel of a compiled program is taken out of it and compiled alone,
in another process, which writes its dumps into a temporary folder: ``python -m tools.tpu.kernels TARGET FOLDER``
reads descriptions of kernels as JSON from its standard input, and leaves the schedule of number ``n`` in ``FOLDER/n``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tools.tpu.bundles import Schedule
from tools.tpu.cost import Frequencies
from tools.tpu.hlo import ArrayType, Instruction, Module
from tools.tpu.targets import Target, TargetError, environment, prepare_environment, target_named

_CONFIG = ("custom_call_config", "scoped_memory_configs")  # what a kernel is made of, and the memory that it may have


@dataclass(frozen=True)
class Kernel:
    """A Pallas kernel of a compiled program."""

    name: str
    arrays: tuple[ArrayType, ...]  # that it takes
    operands: tuple[int, ...]  # numbers of arrays; one array may be several operands
    results: tuple[ArrayType, ...]
    config: str  # its body among other things, as JSON

    @classmethod
    def of(cls, module: Module, computation: str, instruction: Instruction) -> Kernel:
        """Take out the kernel that an instruction of a computation runs."""
        named = module.named(computation)
        arrays = list(dict.fromkeys(instruction.operands))
        config = {field: value for field, value in instruction.config.items() if field in _CONFIG}
        return cls(
            instruction.kernel or instruction.name,
            tuple(named[array].results[0] for array in arrays),
            tuple(arrays.index(operand) for operand in instruction.operands),
            instruction.results,
            json.dumps(config, sort_keys=True),
        )

    @cached_property
    def description(self) -> dict[str, Any]:
        """What the other process must know."""
        return {
            "arrays": [(array.dtype, array.dimensions) for array in self.arrays],
            "operands": self.operands,
            "results": [(array.dtype, array.dimensions) for array in self.results],
            "config": self.config,
        }


class Schedules:
    """The schedules of all kernels that were asked for."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[Kernel, Schedule] = {}

    def add(self, modules: Sequence[Module]) -> None:
        """Compile the kernels of some programs, each once. Raises TargetError if the other process fails."""
        new = [kernel for module in modules for kernel in kernels(module).values() if kernel not in self._known]
        missing = list(dict.fromkeys(new))
        if missing:
            self._known |= dict(zip(missing, schedules(self._target, missing), strict=True))

    def of(self, module: Module) -> Mapping[str, Schedule]:
        """Return the schedules of a program's kernels by the names of their instructions."""
        return {instruction: self._known[kernel] for instruction, kernel in kernels(module).items()}


def kernels(module: Module) -> dict[str, Kernel]:
    """Return the Pallas kernels of a program by the names of their instructions, which are unique in a module."""
    return {
        instruction.name: Kernel.of(module, computation, instruction)
        for computation, instruction in module.executed()
        if instruction.kernel is not None
    }


def kernel_cycles(schedules: Mapping[str, Schedule], frequencies: Frequencies, instruction: Instruction) -> float:
    """Return the cycles of one run of the kernel that an instruction runs."""
    assert instruction.kernel is not None
    return schedules[instruction.name].cycles(instruction.kernel, frequencies)


def schedules(target: Target, wanted: Sequence[Kernel]) -> list[Schedule]:
    """Compile kernels in another process, and return their schedules. Raises TargetError if that process fails."""
    with tempfile.TemporaryDirectory(prefix="scoreline-kernels-") as folder:
        dumps = Path(folder, "dumps")
        dumps.mkdir()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tools.tpu.kernels", target.name, folder],
            input=json.dumps([kernel.description for kernel in wanted]),
            env=os.environ | environment(target, dumps),
            text=True,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            raise TargetError(f"compiling {', '.join(kernel.name for kernel in wanted)} alone failed: {lines[-1]}")
        return [Schedule.parse(Path(folder, str(n)).read_text(encoding="utf-8")) for n in range(len(wanted))]


def main() -> None:
    """Compile the kernels that standard input describes."""
    target, folder = target_named(sys.argv[1]), Path(sys.argv[2])
    dumps = folder / "dumps"
    prepare_environment(target, dumps)
    import jax

    from tools.tpu.compiler import Compiler, shape_of

    compiler = Compiler(target)
    for number, kernel in enumerate(json.load(sys.stdin)):
        arrays, results = (
            [shape_of(ArrayType(dtype, tuple(dimensions))) for dtype, dimensions in kernel[side]]
            for side in ("arrays", "results")
        )
        call = jax.ffi.ffi_call(
            "tpu_custom_call", results, custom_call_api_version=1, legacy_backend_config=kernel["config"]
        )
        operands = kernel["operands"]
        compiler.compile(lambda *given, call=call, operands=operands: call(*(given[n] for n in operands)), arrays)
        written = [path for path in dumps.glob("*ffi_call*final_bundles.txt") if "schedule-analysis" not in path.name]
        if len(written) != 1:
            sys.exit(f"libtpu wrote {len(written)} schedules of a kernel instead of one")
        written[0].rename(folder / str(number))
        for path in dumps.iterdir():
            path.unlink()


if __name__ == "__main__":
    main()
