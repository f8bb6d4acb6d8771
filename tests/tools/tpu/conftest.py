"""What tests of compiling for TPUs share."""

from __future__ import annotations

import os

import pytest

from tools.tpu.compiler import Compiler
from tools.tpu.targets import TargetError, prepare_environment, require_libtpu, target_named


@pytest.fixture(scope="session")
def libtpu() -> None:
    """Skip the tests that need libtpu where it is not installed. In CI they fail."""
    try:
        require_libtpu()
    except TargetError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"NOT TESTED: {error}")


@pytest.fixture(scope="session")
def compiler(libtpu: None) -> Compiler:
    """A compiler for one chip of a v6e. Compilers for other targets work beside it."""
    v6e = target_named("v6e:1x1")
    prepare_environment(v6e)
    return Compiler(v6e)
