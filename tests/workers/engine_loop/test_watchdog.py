"""The watchdog reports an engine that hangs, and no other."""

from __future__ import annotations

import threading
import time

import pytest

from workers.engine_loop.watchdog import Watchdog


@pytest.mark.parametrize("fed", [True, False])
def test_an_armed_watchdog_reports_when_it_is_not_fed(fed: bool) -> None:
    stuck = threading.Event()
    watchdog = Watchdog(0.4, stuck.set)
    with watchdog.armed():
        deadline = time.monotonic() + 1.2
        while time.monotonic() < deadline and not stuck.wait(0.02):
            if fed:
                watchdog.feed()
    assert stuck.is_set() is not fed
    watchdog.close()


def test_the_watchdog_stays_armed_after_an_inner_block_has_ended() -> None:
    stuck = threading.Event()
    watchdog = Watchdog(0.2, stuck.set)
    with watchdog.armed():
        with watchdog.armed():
            pass
        assert stuck.wait(10.0)
    watchdog.close()


def test_a_watchdog_that_is_not_armed_reports_nothing() -> None:
    stuck = threading.Event()
    watchdog = Watchdog(0.1, stuck.set)
    with watchdog.armed():
        pass
    assert not stuck.wait(0.5)
    watchdog.close()
