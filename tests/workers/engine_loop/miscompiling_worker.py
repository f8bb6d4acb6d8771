"""The process of a scoring worker whose compiler gets one program wrong.

Run it with ``python -m tests.workers.engine_loop.miscompiling_worker PROGRAM``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from unittest.mock import patch

from jax import Array

from model.buckets import Key
from model.layerwise.executables import Executables
from workers.engine_loop import __main__ as scoring
from workers.stopping import end_process


def miscompile(program: str) -> None:
    """Make the first row of a program's outputs too large by a fifth. program: its name."""
    compile_program = Executables._compile

    def miscompiled(self: Executables, key: Key) -> Callable[..., tuple[Array, ...]]:
        executable: Callable[..., tuple[Array, ...]] = compile_program(self, key)
        if str(key) != program:
            return executable
        return lambda *arguments: tuple(output.at[0].multiply(1.2) for output in executable(*arguments))

    patch.object(Executables, "_compile", miscompiled).start()


if __name__ == "__main__":
    miscompile(sys.argv[1])
    end_process(scoring.main())
