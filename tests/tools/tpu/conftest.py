"""What tests of compiling for TPUs share."""

from __future__ import annotations

import os

import pytest

from tools.tpu.targets import TargetError, require_libtpu


@pytest.fixture(scope="session")
def libtpu() -> None:
    """Skip the tests that need libtpu where it is not installed. In CI they fail."""
    try:
        require_libtpu()
    except TargetError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"NOT TESTED: {error}")
