"""Live comparison with HuggingFace: collected where torch is installed, and demanded by ``-m parity`` (make parity)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without torch there is nothing to compare with; asked for by name, these tests fail rather than vanish."""
    wanted = config.getoption("markexpr") == "parity"
    return True if find_spec("torch") is None and not wanted else None
