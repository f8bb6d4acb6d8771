"""The engine makes few estimates, and corrects them by what it measures on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from model.engine import SAMPLED_GROUPS, Engine
from scoring.layout import GroupWork
from scoring.planning.algorithms import Algorithm
from scoring.planning.description import describe, planner_of
from scoring.planning.estimates import NOTHING, Estimate, Estimator
from scoring.planning.forecast import Pace, forecast
from scoring.planning.lengths import GroupLengths
from tests.model import engines
from tests.model.continuations.cases import Case, Label
from tests.model.geometries import Group, Item


def works(count: int, prefix: int = 90, items: int = 20) -> list[GroupWork]:
    """Different groups of one shape."""
    random = np.random.RandomState(0)
    groups = []
    for number in range(count):
        of_prefix, *of_items = (tuple(random.randint(0, 90, length).tolist()) for length in (prefix, *[5] * items))
        groups.append(Group(of_prefix, tuple(map(Item, of_items))).work(f"group {number}", number))
    return groups


def computed(engine: Engine, groups: Sequence[GroupWork]) -> Any:
    """The engine's log entry about scoring some groups."""
    with capture_logs() as logs:
        list(engine.score(groups, lambda: None))
    (told,) = [entry for entry in logs if entry["event"] == "computed"]
    return told


@pytest.fixture
def engine(checkpoint: Callable[[str], Path]) -> Engine:
    """An engine by whose clock every step takes seconds, and which caches no prefix."""
    loaded = engines.load(checkpoint("untied"), "float32", step_tokens=64, enable_scoring_cache=False)
    loaded._clock = count(0.0, 3.0).__next__
    return loaded


@pytest.mark.parametrize("groups", [1, pytest.param(3, marks=pytest.mark.slow), 3 * SAMPLED_GROUPS])
def test_the_estimate_of_work_that_was_just_measured_is_about_right(groups: int, engine: Engine) -> None:
    first = computed(engine, works(groups))
    assert first["estimated_seconds"] < 0.1 * first["seconds"], "the stored rates are far off"
    again = computed(engine, works(groups))
    assert again["estimated_seconds"] == pytest.approx(again["seconds"], rel=0.2)
    other = computed(engine, works(groups, prefix=200, items=40))
    assert other["estimated_seconds"] == pytest.approx(other["seconds"], rel=0.5)
    assert engine.estimate_ratio == pytest.approx(first["estimate_ratio"], rel=0.5)


@pytest.mark.parametrize("batch_invariant", [pytest.param(False, marks=pytest.mark.slow), True])
def test_estimates_are_made_of_a_sample_unless_they_choose_the_algorithm(
    batch_invariant: bool, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.load(checkpoint("untied"), "float32", step_tokens=64, batch_invariant=batch_invariant)
    monkeypatch.setattr(engine, "_clock", count(0.0, 1e-3).__next__)
    asked: list[Algorithm] = []
    estimate = Estimator.of

    def counted(self: Estimator, algorithm: Algorithm, group: GroupLengths) -> Estimate:
        asked.append(algorithm)
        return estimate(self, algorithm, group)

    monkeypatch.setattr(Estimator, "of", counted)
    made = []
    for _ in range(2):
        computed(engine, works(3 * SAMPLED_GROUPS))
        made.append(len(asked))
    if batch_invariant:
        assert made == [SAMPLED_GROUPS, SAMPLED_GROUPS]
    else:
        assert made[1] > 2 * 3 * SAMPLED_GROUPS


def test_work_whose_estimate_is_nothing_is_not_compared(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.work.planned.estimate", lambda estimator, cut: NOTHING)
    assert computed(engine, works(1))["estimated_seconds"] is None
    assert engine.estimate_ratio == 1.0


def test_preempting_work_is_not_measured_as_part_of_the_work_around_it(engine: Engine) -> None:
    undisturbed = computed(engine, works(1))["seconds"]

    def preempt() -> None:
        list(engine.score(works(2), lambda: None))

    with capture_logs() as logs:
        list(engine.score(works(1), preempt))
    assert [entry for entry in logs if entry["event"] == "computed"][-1]["seconds"] == undisturbed


def test_a_forecast_names_the_tokens_that_the_engine_then_shares(engine: Engine) -> None:
    """Also for empty items, for items longer than a step, and for those that share a part of the query only."""
    prefix = tuple(range(1, 81))
    items = (Item((1, 2)), Item(()), Item((3,) * 100), Item((4, 5), short_by=1), Item((6,) * 64))
    group = Group(prefix, items).work("shared", 0)
    planner = planner_of(json.loads(json.dumps(describe(engine.planner))))
    assert planner is not None
    found = forecast(len(prefix), [chunk.rows for chunk in group.chunks], [Pace(planner, 1.0, 4.0)])
    scored = list(engine.score([group], lambda: None))
    assert sum(chunk.cached_tokens for chunk in scored) == found.cached_tokens
    assert {choice.algorithm for choice in found.items_of} == {name for chunk in scored for name in chunk.algorithms}


def test_what_was_measured_beside_the_compiler_is_forgotten(engine: Engine) -> None:
    found: list[float | None] = []

    def compile(*_: object) -> None:
        computed(engine, works(3))
        found.append(engine.measured_estimate_ratio)

    engine._compile = compile  # type: ignore[assignment, method-assign]
    engine.warm_up_rest(lambda done, total, what: None)
    assert (found, engine.measured_estimate_ratio) == ([None], None)
    computed(engine, works(3))
    assert engine.measured_estimate_ratio == engine.estimate_ratio != 1.0


def test_work_that_began_beside_the_compiler_and_ends_behind_it_is_not_measured(engine: Engine) -> None:
    engine._compile = lambda *_: None  # type: ignore[method-assign]
    steps = iter([lambda: engine.warm_up_rest(lambda done, total, what: None)])
    list(engine.score(works(3), lambda: next(steps, lambda: None)()))
    assert next(steps, None) is None, "compiling has ended within the call"
    assert (engine.measured_estimate_ratio, engine.estimate_ratio) == (None, 1.0)
    computed(engine, works(3))
    assert engine.measured_estimate_ratio == engine.estimate_ratio != 1.0


@pytest.mark.parametrize("items", [(2, 0, 100), (100, 3)])
def test_a_forecast_of_labels_names_the_tokens_that_the_engine_then_shares(
    items: tuple[int, ...], engine: Engine
) -> None:
    """Short items are computed with each of their labels, long ones once for all labels."""
    of_items = tuple(Item((5,) * length) for length in items)
    case = Case(tuple(range(1, 81)), of_items, ((Label((1,)), Label((1, 2)), Label((3, 4, 5))),) * len(items)).work()
    chunks = case.chunks
    paces = [Pace(engine.planner, 1.0, 4.0)]
    found = forecast(80, [chunk.rows for chunk in chunks], paces, [chunk.continuations for chunk in chunks])
    (scored,) = engine.score([case], lambda: None)
    assert scored.cached_tokens == found.cached_tokens
    assert found.seconds > forecast(80, [chunk.rows for chunk in chunks], paces).seconds


def test_the_estimate_of_labels_is_about_right(engine: Engine) -> None:
    computed(engine, works(3))
    items = tuple(Item((5,) * length) for length in (3, 8, 20, 90, 130))
    labels = ((Label((1,)), Label((1, 2)), Label((3, 4, 5, 6))),) * len(items)
    told = computed(engine, [Case(tuple(range(1, 81)), items, labels).work()])
    assert told["estimated_seconds"] == pytest.approx(told["seconds"], rel=0.5)
