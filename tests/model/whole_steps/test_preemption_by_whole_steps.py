"""The tests of tests/model/test_preemption.py, by engines that compute whole steps."""

from __future__ import annotations

import pytest

from tests.model.test_preemption import *  # noqa: F403 (the tests and their fixtures)

pytestmark = [pytest.mark.usefixtures("by_whole_steps"), pytest.mark.slow]
