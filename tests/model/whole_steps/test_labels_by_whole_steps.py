"""The tests of tests/model/continuations, by engines that compute whole steps."""

from __future__ import annotations

import pytest

from tests.model.continuations.test_continuations import *  # noqa: F403 (the tests and their fixtures)

del test_a_planted_bug_is_noticed  # noqa: F821 (of programs by layer)

pytestmark = [pytest.mark.usefixtures("by_whole_steps"), pytest.mark.slow]
