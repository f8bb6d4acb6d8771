"""The tests of tests/model/test_engine.py, by engines that compute whole steps."""

from __future__ import annotations

import pytest

from tests.model.engines import DType
from tests.model.test_engine import *  # noqa: F403 (the tests and their fixtures)

pytestmark = [pytest.mark.usefixtures("by_whole_steps"), pytest.mark.slow]


@pytest.fixture  # type: ignore[no-redef]
def calls() -> int:
    """Few, because there are few programs: which of them is called depends on the number of labels alone."""
    return 10


@pytest.fixture  # type: ignore[no-redef]
def dtype() -> DType:
    """One in which a CPU computes sooner. The programs are the same ones in every dtype."""
    return "float32"
