"""A device never waits for the host: states stay on it, two steps run ahead, and work is planned meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from model.engine import Engine
from model.forward import Extension
from model.programs.heads import Heads
from model.running.lookahead import ACCELERATOR_STEPS
from model.score_buffer import EngineError
from model.states import Computed, States
from model.work import ahead
from model.work.planned import WorkPlanner
from scoring.layout import GroupWork, Head
from tests.model import engines
from tests.model.engines import chunk
from tests.model.geometries import VOCABULARY
from tests.model.whole_steps.conftest import WHOLE_STEPS

STEP = 64
LABELS = (1, 2, 3)
Bits = dict[int, bytes]
"""The logits of each chunk."""


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[[str], Path]) -> Engine:
    return engines.load(checkpoint("untied"), "float32", platform=WHOLE_STEPS, step_tokens=STEP)


def work(first: int, queries: int, items: int = 12, length: int = 9) -> list[GroupWork]:
    """Groups of several steps each, behind queries of their own."""
    groups = []
    for number in range(first, first + queries):
        random = np.random.RandomState(number)
        query, *rows = (random.randint(0, VOCABULARY, n).astype(np.int32) for n in (70, *[length] * items))
        half = items // 2
        chunks = tuple(chunk(10 * number + n, part, 70, LABELS) for n, part in enumerate((rows[:half], rows[half:])))
        groups.append(GroupWork("owner", query, chunks))
    return groups


def logits(engine: Engine, groups: Sequence[GroupWork], on_step: Callable[[], None] = lambda: None) -> Bits:
    return {scored.id: scored.scores.logits.tobytes() for scored in engine.score(groups, on_step)}


class Dispatched:
    """Counts the steps of an engine."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        engine.prefix_cache.clear()  # of what other tests have left
        run = engine.forward.run

        def counted(extensions: Sequence[Extension]) -> Computed:
            self.steps += 1
            return run(extensions)

        monkeypatch.setattr(engine.forward, "run", counted)


def test_two_steps_run_ahead_and_those_of_preempted_work_behind_a_call(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched, complete, running_ahead = Dispatched(engine, monkeypatch), count(1), list[int]()

    def on_step(preempt: bool = True) -> None:
        running_ahead.append(dispatched.steps - next(complete))
        if preempt and len(running_ahead) == 2:
            logits(engine, work(90, 1, items=2), lambda: on_step(preempt=False))

    logits(engine, work(1, 4), on_step)
    assert running_ahead[:2] == [ACCELERATOR_STEPS] * 2
    # The call has three steps. Two of the work that it preempts are dispatched behind them, before they are awaited.
    assert running_ahead[2:5] == [4, 5, 4]
    assert running_ahead[-1] == 0


def test_an_error_of_a_step_that_was_dispatched_beside_a_call_belongs_to_its_own_work(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, run, called = logits(engine, work(90, 1)), engine.forward.run, list[Bits]()

    def failing(extensions: Sequence[Extension]) -> Computed:
        row = extensions[0].row
        if fails and row is not None and row.buffer.chunk.id < 900:
            raise EngineError("planted")
        return run(extensions)

    fails: list[bool] = []
    monkeypatch.setattr(engine.forward, "run", failing)

    def on_step() -> None:
        if not fails:
            fails.append(True)
            called.append(logits(engine, work(90, 1)))

    with pytest.raises(EngineError, match="planted"):
        logits(engine, work(1, 4), on_step)
    assert called == [expected]


def test_work_that_is_planned_piece_by_piece_has_the_bits_of_work_that_is_planned_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = work(20, 12)
    planned, dispatched, plan = list[int](), Dispatched(engine, monkeypatch), WorkPlanner.plan

    def noted(*given: Any) -> Any:
        planned.append(dispatched.steps)
        return plan(*given)

    monkeypatch.setattr(WorkPlanner, "plan", noted)
    monkeypatch.setattr(ahead, "PIECE_STEPS", 1)
    monkeypatch.setattr(ahead, "REST_STEPS", 0)
    monkeypatch.setattr(ahead, "SLICE_STEPS", 3)
    by_piece = logits(engine, groups)
    assert len(planned) > len(groups), "a group with several chunks is several pieces"
    assert planned[0] == 0
    assert planned[-1] > len(groups), "and most are planned between steps"
    planned.clear()
    dispatched.steps = 0
    monkeypatch.setattr(ahead, "REST_STEPS", 10**6)
    assert logits(engine, groups) == by_piece
    assert not any(planned), "a short rest is planned along with the first piece"


def test_heads_take_states_from_the_host_and_of_several_steps_on_the_device(engine: Engine) -> None:
    heads: Heads = engine.forward.heads
    width = engine._width
    states = np.random.RandomState(5).standard_normal((40, width)).astype(np.float32)
    (expected, *_) = heads.of_labels(Head.LOGITS, [States(states, np.arange(40, dtype=np.int32))], LABELS)
    first, second = Computed(jax.device_put(states[:30]), 0), Computed(jax.device_put(states[30:]), 0)
    parts = [first.of(0, 10), States(states, np.arange(10, 12, dtype=np.int32)), first.of(12, 30), second.of(0, 10)]
    (found, *_) = heads.of_labels(Head.LOGITS, parts, LABELS)
    np.testing.assert_array_equal(np.asarray(found)[:40], np.asarray(expected)[:40])


def test_a_state_that_is_kept_leaves_the_device_once_its_step_is_complete(engine: Engine) -> None:
    states = np.arange(12, dtype=np.float32).reshape(3, 4)
    step = Computed(jax.device_put(states), 0)
    early = step.kept(1)
    assert not isinstance(early.array, np.ndarray)
    step.wait()
    late = step.kept(2)
    for kept, number in ((early, 1), (late, 2)):
        assert isinstance(kept.array, np.ndarray)
        assert kept.array.shape == (1, 4)
        np.testing.assert_array_equal(kept.fetch(), states[number : number + 1])
