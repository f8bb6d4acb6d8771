"""A process accepts no more connections than it may open files for, and keeps some files for the rest of its work."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASK = """
import resource, sys
from api.server.open_files import connections_that_fit
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
print(connections_that_fit(int(sys.argv[3])), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "fitting", "raised"),
    [
        (256, 4096, 1000, 1000, 1256),  # raised as far as needed
        (256, 1024, 8192, 768, 1024),  # raised as far as allowed
        (2048, 2048, 1000, 1000, 2048),  # enough already, and never lowered
        (100, 100, 8192, 50, 100),  # a limit too low to serve many still leaves files for the rest
    ],
)
def test_the_limit_of_open_files_is_raised_and_divided(
    soft: int, hard: int, wanted: int, fitting: int, raised: int
) -> None:
    command = [sys.executable, "-c", ASK, str(soft), str(hard), str(wanted)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert answer.split() == [str(fitting), str(raised)]
