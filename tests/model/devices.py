"""Devices that this machine does not have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import jax


def stand_in(platform: str, kind: str = "some kind") -> jax.Device:
    """A device that only says what it is."""
    return cast("jax.Device", SimpleNamespace(platform=platform, device_kind=kind))
