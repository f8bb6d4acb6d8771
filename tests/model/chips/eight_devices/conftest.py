"""Models on several virtual devices of a CPU. Without eight of them, nothing here is collected."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import pytest

from model.chips.mesh import Chips
from model.engine import Engine
from model.platforms import Platform
from tests.model import engines
from tests.model.checkpoints import EVERY, VARIANTS, tensors, write
from tests.model.references import SEED

EIGHT_DEVICES = "--xla_force_host_platform_device_count=8"

collect_ignore_glob = [] if EIGHT_DEVICES in os.environ.get("XLA_FLAGS", "") else ["test_*.py"]

MODELS = {
    # Three layers, of which two stay a loop. Biases in attention, a head of its own; four key heads, which eight
    # devices can't divide.
    "eight heads": replace(VARIANTS["qwen3 biased"], query_heads=8, kv_heads=4, layers=3),
    # A tied embedding; multipliers; query heads of one device that belong to two key heads in unequal parts.
    "six heads": replace(VARIANTS["granite tied"], query_heads=6, kv_heads=3),
    # Layers with a sliding window and with other positions, norms on both sides.
    "windows": VARIANTS["gemma3"],
    # Recurrent layers, whose channels are those of queries, keys and values, and experts with one that all tokens pass.
    "recurrent": EVERY["qwen35 moe"],
    # Every device has a part of each expert, and the sinks of its heads; the last biases of experts are added once.
    "mixture": VARIANTS["gpt-oss"],
    # Biases in the MLP, and more classes than each device could have the same number of.
    "classes": replace(VARIANTS["llama biased"], classes=7),
}
SIX_HEADS = pytest.param("six heads", 2, marks=pytest.mark.matrix)
SHARED = [
    ("eight heads", 8),
    ("recurrent", 2),
    ("mixture", 4),
    SIX_HEADS,
    pytest.param("windows", 2, marks=pytest.mark.matrix),
    pytest.param("classes", 4, marks=pytest.mark.matrix),
]
"""Models, and how many devices compute them together."""
STEP = 64

Loaded = Callable[[str, int], Engine]


def platform(chips: int) -> Platform:
    """Whole steps on so many virtual devices."""
    devices = jax.devices()[:chips]
    found = Platform.of(devices[0], chips=Chips.of(devices))
    return found if chips > 1 else replace(found, chips=None)


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a checkpoint by its name in MODELS."""

    @cache
    def written(name: str) -> Path:
        folder = tmp_path_factory.mktemp("checkpoints") / name.replace(" ", "_")
        return write(folder, MODELS[name], tensors(MODELS[name], SEED))

    return written


@pytest.fixture(scope="session")
def engine(directory: Callable[[str], Path]) -> Loaded:
    """Engines by the model and the number of devices, 1 for the programs that all others are compared with."""

    @cache
    def loaded(name: str, chips: int) -> Engine:
        return engines.load(directory(name), "float32", platform=platform(chips), step_tokens=STEP)

    return loaded
