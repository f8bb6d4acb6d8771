"""How far the host runs ahead of the device."""

from __future__ import annotations

from model.lookahead import GIVING_WAY_SECONDS, Lookahead


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_no_step_is_dispatched_ahead_for_a_while_after_a_preemption() -> None:
    clock = Clock()
    lookahead = Lookahead(gives_way=True, clock=clock)
    with lookahead.working():
        assert lookahead.allowed()
        with lookahead.working():
            assert lookahead.allowed(), "work that preempts is short"
        assert not lookahead.allowed()
        clock.now += 0.9 * GIVING_WAY_SECONDS
        assert not lookahead.allowed()
        with lookahead.working():
            pass
        clock.now += 0.9 * GIVING_WAY_SECONDS
        assert not lookahead.allowed(), "it was preempted again meanwhile"
        clock.now += 0.2 * GIVING_WAY_SECONDS
        assert lookahead.allowed()


def test_work_that_follows_other_work_does_not_preempt_it() -> None:
    lookahead = Lookahead(gives_way=True, clock=Clock())
    for _ in range(2):
        with lookahead.working():
            assert lookahead.allowed()


def test_work_whose_host_never_gives_way_always_runs_ahead() -> None:
    lookahead = Lookahead(gives_way=False, clock=Clock())
    with lookahead.working():
        with lookahead.working():
            pass
        assert lookahead.allowed()
