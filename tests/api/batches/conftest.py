"""Fixtures for batches."""

from __future__ import annotations

import pytest

from api.batches import blocks
from jobs.file_batches import writing


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the sizes of steps, so that a few lines take many of them."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 700)
    monkeypatch.setattr(blocks, "BLOCK_LINES", 5)
    monkeypatch.setattr(writing, "LINES_PER_STEP", 7)
