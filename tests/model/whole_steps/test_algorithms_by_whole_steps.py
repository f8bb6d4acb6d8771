"""The tests of tests/model/test_algorithms.py, by engines that compute whole steps."""

from __future__ import annotations

import pytest

from tests.model.test_algorithms import *  # noqa: F403 (the tests and their fixtures)

del test_the_size_of_tiles_is_no_part_of_the_scores  # noqa: F821 (whole steps do not have these tiles)

pytestmark = [pytest.mark.usefixtures("by_whole_steps"), pytest.mark.slow]
