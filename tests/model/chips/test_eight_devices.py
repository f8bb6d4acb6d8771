"""Runs the tests of several chips in a process whose CPU shows itself as eight devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scoreline.server_process import ROOT
from tests.model.chips.eight_devices.conftest import EIGHT_DEVICES

FOLDER = Path(__file__).with_name("eight_devices")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", ["not matrix", pytest.param("matrix", marks=pytest.mark.matrix)])
def test_a_model_on_several_virtual_devices(which: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", which, str(FOLDER)],
        env=os.environ | {"XLA_FLAGS": EIGHT_DEVICES},
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8_000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
