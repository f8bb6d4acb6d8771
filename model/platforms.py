"""What differs between platforms, resolved once when a model is loaded."""

from __future__ import annotations

from model.attention import Attention
from model.attention_tiles import TiledAttention

_ATTENTION: dict[str, Attention] = {"cpu": TiledAttention()}
_COMPILER_OPTIONS: dict[str, dict[str, str | bool]] = {"cpu": {"xla_backend_optimization_level": "1"}}
"""On a CPU: a third less time to compile, and no slower (the products are library calls)."""


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
