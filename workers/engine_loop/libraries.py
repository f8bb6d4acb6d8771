"""The libraries that compute on an accelerator: their versions, and those that are known to compute wrong results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

OF_PLATFORM: Mapping[str, tuple[str, ...]] = {
    "tpu": ("libtpu",),
    "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
}
"""The packages beside jax and jaxlib on which the bits of a score may depend, by jax's name of a platform."""

_ZEROS = "a copy within a kernel may give zeros (https://github.com/jax-ml/jax/issues/39744)"
BROKEN: Mapping[str, Mapping[str, str]] = {"libtpu": dict.fromkeys(("0.0.43", "0.0.44", "0.0.45"), _ZEROS)}
"""Versions that are reported to compute wrong results, and what they do."""

DRIVER = "nvidia-driver"
"""How the driver of NVIDIA's GPUs is named among the libraries."""

_TOLD_BY_DRIVER = Path("/proc/driver/nvidia/version")


def versions_of(platform: str) -> dict[str, str]:
    """Return the versions of those libraries of a platform that are installed, and of its driver, by their names."""
    found = {}
    for name in OF_PLATFORM.get(platform, ()):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # for example, of another version of CUDA
            continue
    driver = driver_version() if platform == "gpu" else None
    return found if driver is None else {**found, DRIVER: driver}


def driver_version(told: Path = _TOLD_BY_DRIVER) -> str | None:
    """Return the version of NVIDIA's driver, of which the kernel tells in a file; None if it does not."""
    try:
        found = re.search(r"Kernel Module(?: for \w+)?\s+(\d[\d.]*)", told.read_text(encoding="utf-8"))
    except OSError:
        return None
    return None if found is None else found[1]


def fault_of(versions: Mapping[str, str]) -> str | None:
    """Return why a worker must not compute with libraries of these versions; None if nothing is known."""
    for name, installed in versions.items():
        if (fault := BROKEN.get(name, {}).get(installed)) is not None:
            return f"{name} {installed} is known to compute wrong results: {fault}; install another version"
    return None
