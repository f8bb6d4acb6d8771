"""Live comparison with HuggingFace: collected where torch is installed, or with ``-m parity`` (make parity)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without torch these tests are not collected, unless they are asked for: then they fail."""
    wanted = config.getoption("markexpr") == "parity"
    return True if find_spec("torch") is None and not wanted else None
