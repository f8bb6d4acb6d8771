"""A scoring worker whose compiler gets one program wrong:
``python -m tests.workers.engine_loop.miscompiling_worker PROGRAM``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from jax import Array

from model.buckets import Key
from model.executables import Executables
from workers.engine_loop import __main__ as scoring
from workers.stopping import end_process


def miscompile(program: str) -> None:
    """Have the first row of what a program says be a little off, by the program's name."""
    compile_program: Callable[..., Any] = Executables._compile

    def compiled(self: Executables, key: Key) -> Callable[..., tuple[Array, ...]]:
        executable = compile_program(self, key)
        if str(key) != program:
            return executable
        return lambda *arguments: tuple(output.at[0].multiply(1.2) for output in executable(*arguments))

    Executables._compile = compiled


if __name__ == "__main__":
    miscompile(sys.argv[1])
    end_process(scoring.main())
