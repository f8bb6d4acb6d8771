"""The class Ringer, which rings from one thread for many."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from api.acceptance.ringing import Ringer
from tests.services import wait_until

BROKEN = "broken"


class SlowBell:
    """A bell that records its calls, and whose rings block while it is held."""

    def __init__(self) -> None:
        self.rung: list[str] = []
        self.announced: list[str] = []
        self.held = threading.Event()
        self.held.set()
        self.ringing: threading.Thread | None = None  # the thread that rang last

    def ring(self, model: str) -> None:
        self.ringing = threading.current_thread()
        self.rung.append(model)
        assert model != BROKEN
        assert self.held.wait(30)

    def announce(self, job_ids: Sequence[str]) -> None:
        self.announced.extend(job_ids)

    def close(self) -> None:
        pass


def test_all_rings_requested_during_a_ring_become_one_and_block_no_caller() -> None:
    bell = SlowBell()
    bell.held.clear()
    with Ringer(bell) as ringer:
        ringer.ring("a")
        wait_until(lambda: bell.rung == ["a"], "the first ring")
        for _ in range(100):
            ringer.ring("a")
        assert bell.rung == ["a"]
        bell.held.set()
    assert bell.rung == ["a", "a"]


def test_the_ringer_finishes_all_requested_rings_before_it_exits() -> None:
    bell = SlowBell()
    with Ringer(bell) as ringer:
        ringer.announce(["1"])
        ringer.ring("a")
        ringer.announce(["2", "3"])
        ringer.ring("b")
    assert bell.announced == ["1", "2", "3"]
    assert sorted(bell.rung) == ["a", "b"]


def test_the_ringer_survives_a_bell_that_raises() -> None:
    bell = SlowBell()
    with Ringer(bell) as ringer:
        ringer.ring(BROKEN)
        wait_until(lambda: bell.rung == [BROKEN], "the first ring")
        ringer.ring("a")
    assert bell.rung == [BROKEN, "a"]


def test_the_ringer_exits_in_time_though_its_bell_never_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.acceptance.ringing.LAST_RINGS_SECONDS", 0.01)
    bell = SlowBell()
    bell.held.clear()
    with Ringer(bell) as ringer:
        ringer.ring("a")
        wait_until(lambda: bell.rung == ["a"], "the ring hangs")
    assert bell.ringing is not None
    assert bell.ringing.is_alive(), "the ring hangs no more"
    bell.held.set()
