"""The process of a scoring worker whose compiler gets one program wrong.

Run it with ``python -m tests.workers.engine_loop.processes.miscompiling_worker PROGRAM [FACTOR]``. With a factor, the
worker computes whole steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import jax
from jax import Array

from model.executable_table import ExecutableTable
from model.platforms import Platform
from model.programs.kind import ProgramKey
from workers.engine_loop import __main__ as scoring
from workers.stopping import end_process

TOO_LARGE = 1.2


def miscompile(program: str, factor: float = TOO_LARGE) -> None:
    """Multiply the first row of a program's outputs by a factor. program: its name."""
    compile_program = ExecutableTable._compile

    def miscompiled(self: ExecutableTable[Any], key: ProgramKey[Any]) -> Callable[..., tuple[Array, ...]]:
        executable: Callable[..., tuple[Array, ...]] = compile_program(self, key)
        if str(key) != program:
            return executable
        return lambda *arguments: tuple(output.at[0].multiply(factor) for output in executable(*arguments))

    patch.object(ExecutableTable, "_compile", miscompiled).start()


def compute_whole_steps() -> None:
    """Have this machine compute as an accelerator does."""
    this = Platform.of(jax.devices()[0])
    whole = replace(this, whole_steps=True, largest_block=64, equal_sizes=0, bf16_as_integers=False)
    patch.object(Platform, "of", lambda device, memory=None, chips=None: whole).start()


if __name__ == "__main__":
    name, *factor = sys.argv[1:]
    if factor:
        compute_whole_steps()
    miscompile(name, *map(float, factor))
    end_process(scoring.main())
