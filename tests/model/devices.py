"""Devices that this machine does not have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import jax


def stand_in(platform: str, kind: str = "some kind", memory: dict[str, int] | None = None) -> jax.Device:
    """A device that only says what it is, and what memory it has."""
    return cast("jax.Device", SimpleNamespace(platform=platform, device_kind=kind, memory_stats=lambda: memory))
