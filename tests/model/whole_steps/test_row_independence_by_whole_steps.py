"""The tests of tests/model/isolation/test_row_independence.py, by engines that compute whole steps."""

from __future__ import annotations

import pytest

from model.engine import Engine
from tests.model import engines
from tests.model.engines import DType
from tests.model.isolation.test_row_independence import *  # noqa: F403 (the tests and their fixtures)
from tests.model.isolation.test_row_independence import DEMONSTRATION

pytestmark = [pytest.mark.usefixtures("by_whole_steps"), pytest.mark.slow]


@pytest.fixture(scope="module")  # type: ignore[no-redef]
def engine(by_whole_steps: None, dtype: DType) -> Engine:
    """The demonstration alone: how a CPU computes wide products says nothing about the devices of whole steps."""
    return engines.load(DEMONSTRATION, dtype)
