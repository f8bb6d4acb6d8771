"""The attention kernel of each platform."""

from __future__ import annotations

from model.attention.contract import Attention
from model.attention.tiles import TiledAttention

_KERNELS: dict[str, Attention] = {"cpu": TiledAttention()}


def attention_for(platform: str) -> Attention:
    """Return the attention of a platform, by jax's name for it: tiles unless it has a kernel of its own."""
    return _KERNELS.get(platform, TiledAttention())
