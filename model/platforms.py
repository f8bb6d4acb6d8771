"""The differences between platforms, resolved once when a model is loaded."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

_COMPILER_OPTIONS: dict[str, dict[str, str | bool]] = {"cpu": {"xla_backend_optimization_level": "1"}}
"""On a CPU, compiling takes a third less time, and programs are no slower, because products are library calls."""


_PROCESSOR = Path("/proc/cpuinfo")


def serving_dtype(wanted: Literal["auto", "bfloat16", "float32"], platform: str) -> str:
    """Return the dtype in which a model is served on a platform, by jax's name for it.

    On x86 processors whose products of bf16 are no faster than those of float32, float32 takes 0.55 to 0.8 of the time
    (docs/log.md).
    """
    if wanted != "auto":
        return wanted
    return "float32" if platform == "cpu" and not _may_gain_from_bf16() else "bfloat16"


@cache
def _may_gain_from_bf16() -> bool:
    """Return whether products of bf16 may be faster than those of float32 here; True if nothing is known."""
    try:
        lines = _PROCESSOR.read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    return may_gain_from_bf16(lines)


def may_gain_from_bf16(cpuinfo: list[str]) -> bool:
    """Return the same for the lines of ``/proc/cpuinfo``, where x86 processors alone list their features as ``flags``.

    AMX tiles are several times as fast, and ``avx512_bf16`` is twice as fast on AMD. On Intel processors without tiles
    it is no faster than float32: their vector units add as many products per cycle of either.
    """
    fields = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in cpuinfo)}
    flags = fields.get("flags")
    if flags is None or "amx_bf16" in flags:
        return True
    return "avx512_bf16" in flags and "GenuineIntel" not in fields.get("vendor_id", [])


def compiler_options(platform: str) -> dict[str, str | bool]:
    """Return the compiler's options on a platform."""
    return _COMPILER_OPTIONS.get(platform, {})


def has_row_floor(platform: str, step_tokens: int) -> bool:
    """Return whether a row's bits are the same for any number of rows from :data:`model.buckets.ROW_FLOOR` to a step.

    On CPUs they are, up to 256 rows; at 512 rows, those of a product of width 1,024 were seen to differ.
    """
    return platform == "cpu" and step_tokens <= 256
