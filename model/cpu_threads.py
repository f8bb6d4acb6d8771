"""How many threads compute on a CPU. This is decided before jax is asked for its devices, since it then starts them."""

from __future__ import annotations

from collections.abc import MutableMapping

from model.architecture.config import DecoderConfig

_VARIABLE = "NPROC"
"""The environment variable by which XLA starts another number of threads than there are processors. It has no option
for that, and jax none either.
"""

SMALL_KERNEL = 2**17
"""Numbers in a kernel of the MLP of a small model, at most.

A product of a step with such a kernel takes less than half a millisecond. To divide it among threads and to wait for
them takes as long as they win (docs/log.md has the measurement).
"""


def choose_cpu_threads(wanted: int | None, config: DecoderConfig | None, environment: MutableMapping[str, str]) -> None:
    """Have a CPU compute with ``wanted`` threads. None: with one for a small model, otherwise with one a processor.

    The bits of a small model's scores do not depend on the number (``tests/model/test_cpu_threads.py``). environment:
    that of this process; a number that somebody else has chosen in it stays, unless another is wanted.
    """
    if wanted is not None:
        environment[_VARIABLE] = str(wanted)
    elif config is not None and config.width * config.mlp_width <= SMALL_KERNEL:
        environment.setdefault(_VARIABLE, "1")
