"""Ringing from many threads, through one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from api.ringing import Ringer
from tests.services import wait_until

BROKEN = "broken"


class SlowBell:
    """Keeps what it is told, and takes as long as it is held."""

    def __init__(self) -> None:
        self.rung: list[str] = []
        self.announced: list[str] = []
        self.held = threading.Event()
        self.held.set()

    def ring(self, model: str) -> None:
        self.rung.append(model)
        assert model != BROKEN
        assert self.held.wait(30)

    def announce(self, job_ids: Sequence[str]) -> None:
        self.announced.extend(job_ids)

    def close(self) -> None:
        pass


def test_what_is_asked_for_during_a_ring_is_one_more_after_it_and_nobody_waits_for_it() -> None:
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


def test_all_that_was_asked_for_is_done_before_it_ends() -> None:
    bell = SlowBell()
    with Ringer(bell) as ringer:
        ringer.announce(["1"])
        ringer.ring("a")
        ringer.announce(["2", "3"])
        ringer.ring("b")
    assert bell.announced == ["1", "2", "3"]
    assert sorted(bell.rung) == ["a", "b"]


def test_a_bell_that_breaks_its_promise_is_rung_again() -> None:
    bell = SlowBell()
    with Ringer(bell) as ringer:
        ringer.ring(BROKEN)
        wait_until(lambda: bell.rung == [BROKEN], "the first ring")
        ringer.ring("a")
    assert bell.rung == [BROKEN, "a"]
