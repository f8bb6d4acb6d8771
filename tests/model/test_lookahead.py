"""How far the host runs ahead of the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from model.forward import Extension
from model.running.lookahead import ACCELERATOR_STEPS, GIVING_WAY_SECONDS, Lookahead
from model.states import Computed
from tests.model import engines
from tests.model.geometries import STEP
from tests.model.test_preemption import QUERY, group, logits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_no_step_is_dispatched_ahead_for_a_while_after_a_preemption() -> None:
    clock = Clock()
    lookahead = Lookahead(gives_way=True, clock=clock)
    with lookahead.working():
        assert lookahead.steps() == 1
        with lookahead.working():
            assert lookahead.steps() == 1, "work that preempts is short"
            clock.now += 2 * GIVING_WAY_SECONDS
        assert lookahead.steps() == 0
        clock.now += 0.9 * GIVING_WAY_SECONDS
        assert lookahead.steps() == 0
        with lookahead.working():
            pass
        clock.now += 0.9 * GIVING_WAY_SECONDS
        assert lookahead.steps() == 0, "it was preempted again meanwhile"
        clock.now += 0.2 * GIVING_WAY_SECONDS
        assert lookahead.steps() == 1


def test_work_that_follows_other_work_does_not_preempt_it() -> None:
    lookahead = Lookahead(gives_way=True, clock=Clock())
    for _ in range(2):
        with lookahead.working():
            assert lookahead.steps() == 1


def test_work_whose_host_never_gives_way_always_runs_ahead() -> None:
    lookahead = Lookahead(gives_way=False, clock=Clock())
    with lookahead.working():
        with lookahead.working():
            pass
        assert lookahead.steps() == ACCELERATOR_STEPS


def test_no_step_is_dispatched_ahead_of_a_call_that_may_come_soon(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.load(checkpoint("untied"), "float32", step_tokens=STEP)
    monkeypatch.setattr("model.running.lookahead.GIVING_WAY_SECONDS", 3_600.0)
    run, dispatched, complete = engine.forward.run, 0, 0
    ahead: list[int] = []

    def counted(extensions: Sequence[Extension]) -> Computed:
        nonlocal dispatched
        dispatched += 1
        return run(extensions)

    def on_step(preempt: bool = True) -> None:
        nonlocal complete
        complete += 1
        ahead.append(dispatched - complete)
        if preempt and len(ahead) == 3:
            logits(engine, group(2, QUERY, (5,)), lambda: on_step(preempt=False))

    monkeypatch.setattr(engine.forward, "run", counted)
    logits(engine, group(1, QUERY, (40,) * 7), on_step)
    # The fourth is the step of the call, which begins while one more is dispatched, and the fifth is that one.
    assert ahead == [1, 1, 1, 1, 0, 0, 0, 0]
