"""The process that watches a service."""

from __future__ import annotations

import os

from tests.hostile.watching import Watch, Watched
from tests.services import free_port

SECONDS = 60.0


def test_it_ends_when_whoever_started_it_has_gone() -> None:
    with Watch(Watched(free_port(), "key", os.getpid(), "postgresql://127.0.0.1:1/none")) as watch:
        watch._ours.close()
        watch._process.join(SECONDS)
        assert watch._process.exitcode == 0
