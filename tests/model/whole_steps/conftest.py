"""Engines that compute whole steps, on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from model.platforms import Platform
from tests.model import engines

WHOLE_STEPS: Platform = replace(
    engines.PLATFORM, whole_steps=True, largest_block=64, equal_sizes=0, bf16_as_integers=False
)
"""A CPU that computes like an accelerator. A block is a step of the shortest kind, and a quarter of others."""


@pytest.fixture(scope="module")
def by_whole_steps() -> Iterator[None]:
    """Let all engines of a module compute whole steps."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(engines, "PLATFORM", WHOLE_STEPS)
        yield
