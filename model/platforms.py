"""What differs between platforms, resolved once when a model is loaded."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from model.attention.contract import Attention
from model.attention.tiles import TiledAttention

_ATTENTION: dict[str, Attention] = {"cpu": TiledAttention()}
_COMPILER_OPTIONS: dict[str, dict[str, str | bool]] = {"cpu": {"xla_backend_optimization_level": "1"}}
"""On a CPU: a third less time to compile, and no slower (the products are library calls)."""


_PROCESSOR = Path("/proc/cpuinfo")


def serving_dtype(wanted: Literal["auto", "bfloat16", "float32"], platform: str) -> str:
    """The dtype that a model is served in, by jax's name for the platform.

    Where an x86 processor's products of bf16 are no faster than those of float32, the same work in float32 takes 0.55
    to 0.8 of the time (docs/log.md).
    """
    if wanted != "auto":
        return wanted
    return "float32" if platform == "cpu" and not _may_gain_from_bf16() else "bfloat16"


@cache
def _may_gain_from_bf16() -> bool:
    """Whether products of bf16 may be faster than those of float32 on this processor: so where nothing is known."""
    try:
        lines = _PROCESSOR.read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    return may_gain_from_bf16(lines)


def may_gain_from_bf16(cpuinfo: list[str]) -> bool:
    """The same by the lines of ``/proc/cpuinfo``, which list what an x86 can do as ``flags``, and nobody else does.

    Tiles (AMX) are several times as fast, and ``avx512_bf16`` twice as fast on an AMD. An Intel without tiles makes no
    more of it than of float32: its vectors add as many products a cycle either way.
    """
    fields = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in cpuinfo)}
    flags = fields.get("flags")
    if flags is None or "amx_bf16" in flags:
        return True
    return "avx512_bf16" in flags and "GenuineIntel" not in fields.get("vendor_id", [])


def attention_for(platform: str) -> Attention:
    """The attention of a platform, by jax's name for it; tiles where it has none of its own."""
    return _ATTENTION.get(platform, TiledAttention())


def compiler_options(platform: str) -> dict[str, str | bool]:
    """How programs are compiled on a platform."""
    return _COMPILER_OPTIONS.get(platform, {})


def has_row_floor(platform: str, step_tokens: int) -> bool:
    """Whether a row's bits are the same for any number of rows from :data:`model.buckets.ROW_FLOOR` up to a step.

    On a CPU they are up to 256 rows; at 512 those of a product of width 1,024 were seen to differ.
    """
    return platform == "cpu" and step_tokens <= 256
