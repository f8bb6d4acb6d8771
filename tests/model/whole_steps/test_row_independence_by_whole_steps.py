"""The tests of tests/model/isolation/test_row_independence.py, by engines that compute whole steps."""

from __future__ import annotations

import pytest

from model.engine import Engine
from tests.model import engines
from tests.model.isolation.test_row_independence import *  # noqa: F403 (the tests and their fixtures)
from tests.model.isolation.test_row_independence import DEMONSTRATION

pytestmark = [pytest.mark.usefixtures("by_whole_steps"), pytest.mark.slow]


@pytest.fixture(  # type: ignore[no-redef]
    scope="module", params=["float32", pytest.param("bfloat16", marks=pytest.mark.matrix)]
)
def engine(by_whole_steps: None, request: pytest.FixtureRequest) -> Engine:
    """The demonstration alone: how a CPU computes wide products says nothing about the devices of whole steps."""
    return engines.load(DEMONSTRATION, request.param)
