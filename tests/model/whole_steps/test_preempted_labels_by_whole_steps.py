"""The tests of tests/model/continuations/test_preempted_labels.py, by engines that compute whole steps."""

from __future__ import annotations

import pytest

from tests.model.continuations.test_preempted_labels import *  # noqa: F403 (the tests and their fixtures)

pytestmark = [pytest.mark.usefixtures("by_whole_steps"), pytest.mark.slow]
