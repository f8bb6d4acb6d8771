"""TPUs that programs can be compiled for on a machine that has none, by libtpu alone.

libtpu is an optional package, and the installed jax names the version that belongs to it. libtpu reads its environment
once, when it is loaded; so :func:`prepare_environment` is called before jax is imported.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

DUMP = "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
"""The options with which libtpu writes the schedules of all that it compiles into a folder: gigabytes for a decoder."""


class TargetError(Exception):
    """Why nothing can be compiled here, in one line."""


@dataclass(frozen=True, slots=True)
class Target:
    """A TPU whose chips are compiled for: all of them compute one model together."""

    name: str
    topology: str  # the name that jax knows it by
    hosts: tuple[int, int, int]  # chips of a host along each axis
    accelerator: str  # the type that libtpu reads from its environment
    peak: float  # operations of bf16 products a second, of one chip (the vendor's figure)
    cycle_flop: int  # the same a cycle: 2 x the cells of all matrix units
    bandwidth: float  # bytes a second of its high-bandwidth memory (the vendor's figure)
    ring: float  # bytes a second that a chip sends to its two neighbours in a ring (two of the vendor's four ports)
    usable_memory: float  # bytes of high-bandwidth memory that a program can have, of one chip

    @property
    def chips(self) -> int:
        """How many chips it has."""
        return math.prod(self.hosts)

    @property
    def clock(self) -> float:
        """Cycles a second."""
        return self.peak / self.cycle_flop

    @property
    def cycle_bytes(self) -> float:
        """Bytes that the memory reads or writes in a cycle."""
        return self.bandwidth / self.clock

    @property
    def cycle_ring_bytes(self) -> float:
        """Bytes that a chip sends to its neighbours in a cycle."""
        return self.ring / self.clock


_GIB = 2.0**30
_V5E = (197e12, 4 * 2 * 128**2, 819e9, 100e9, 15.75 * _GIB)
_V5P = (459e12, 8 * 2 * 128**2, 2_765e9, 200e9, 94 * _GIB)
_V6E = (918e12, 4 * 2 * 256**2, 1_640e9, 200e9, 31.25 * _GIB)
_7X = (1_153.5e12, 4 * 2 * 256**2, 3_690e9, 200e9, 95 * _GIB)
"""Of one of the two devices that jax sees in a chip of the seventh generation. Its clock follows from the assumption of
as many matrix units as a v6e has; the vendor does not say."""
TARGETS = {
    target.name: target
    for target in (
        Target("v5e", "v5e:1x1", (1, 1, 1), "v5litepod-1", *_V5E),
        Target("v6e", "v6e:1x1", (1, 1, 1), "v6e-1", *_V6E),
        Target("v6e:1x1", "v6e:1x1", (1, 1, 1), "v6e-1", *_V6E),
        Target("v6e:2x2", "v6e:2x2", (2, 2, 1), "v6e-4", *_V6E),
        Target("v6e:2x4", "v6e:2x4", (2, 4, 1), "v6e-8", *_V6E),
        Target("v5p", "v5p:1x1x1", (1, 1, 1), "v5p-2", *_V5P),
        Target("7x", "tpu7x:1x1x1", (1, 1, 1), "tpu7x-2", *_7X),
    )
}


def target_named(name: str) -> Target:
    """Return a target. Raises TargetError for an unknown name."""
    if name not in TARGETS:
        raise TargetError(f"unknown target {name!r}; known: {', '.join(TARGETS)}")
    return TARGETS[name]


def require_libtpu() -> None:
    """Raise TargetError unless the version of libtpu that belongs to the installed jax can be imported."""
    wanted = pinned_version(metadata.requires("jax") or [])
    advice = f"install libtpu=={wanted}, as requirements-tpu.txt does"
    try:
        found = metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        raise TargetError(f"libtpu, which compiles for TPUs, is not installed here; {advice}") from None
    if found != wanted and not found.startswith(f"{wanted}."):
        raise TargetError(f"libtpu {found} is installed, which does not fit the installed jax; {advice}")


def pinned_version(requirements: Sequence[str]) -> str:
    """Return the version of libtpu that a package requires. Raises TargetError if it requires none."""
    for requirement in requirements:
        found = re.match(r"libtpu\s*==\s*([\w.]+?)(?:\.\*)?\s*(?:;|$)", requirement)
        if found:
            return found.group(1)
    raise TargetError("the installed jax does not say which libtpu belongs to it")


def prepare_environment(target: Target, dump_folder: Path | None = None) -> None:
    """Set the variables that libtpu and jax read when they are loaded, so that they look for no device.

    Programs that are compiled for a TPU can't be kept in jax's cache on disk, which would try to load them.
    """
    os.environ |= environment(target, dump_folder)
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)


def environment(target: Target, dump_folder: Path | None = None) -> dict[str, str]:
    """Return these variables. dump_folder: where libtpu shall write schedules; None: nowhere."""
    variables = {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",  # there is no cloud's metadata service to ask
        "TPU_ACCELERATOR_TYPE": target.accelerator,
        "TPU_WORKER_HOSTNAMES": "localhost",
        # Compiling takes no device, so that another process may do so as well. libtpu would refuse to be loaded twice.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    }
    if dump_folder is not None:
        variables["LIBTPU_INIT_ARGS"] = DUMP.format(folder=dump_folder)
    return variables
