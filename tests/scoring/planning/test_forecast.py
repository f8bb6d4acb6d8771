"""What scoring a job will take, and planning as a worker of another process would."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from scoring.layout import Rows
from scoring.planning.algorithms import Algorithm, Policy
from scoring.planning.description import describe, planner_of
from scoring.planning.forecast import Pace, forecast
from scoring.planning.planner import Planner
from tests.scoring.planning.test_planner import ESTIMATOR, FREE, INVARIANT

PLANNER = Planner(INVARIANT, ESTIMATOR)
PACE = Pace(PLANNER, ratio=1.0, claim_seconds=4.0)


def rows(items: int, prefix: int, length: int = 20) -> Rows:
    return Rows.pack([np.zeros(length, np.int32)] * items, [prefix] * items)


@pytest.mark.parametrize("policy", [INVARIANT, FREE])
def test_a_planner_is_the_same_after_a_journey_as_json(policy: Policy) -> None:
    planner = replace(PLANNER, policy=policy)
    assert planner_of(json.loads(json.dumps(describe(planner)))) == planner


def test_a_planner_of_another_version_is_not_taken_for_one_of_this() -> None:
    described = describe(PLANNER)
    described["policy"]["something_new"] = 1
    assert planner_of(described) is None
    assert planner_of({}) is None


def test_all_items_but_the_first_share_a_long_query() -> None:
    found = forecast(1_000, [rows(10, 1_000), rows(5, 1_000)], [PACE])
    [(choice, items)] = found.items_of.items()
    assert (choice.algorithm, items) == (Algorithm.PREFILL_EXTEND, 15)
    assert found.cached_tokens == 14 * 1_000


def test_nothing_is_shared_of_a_short_query() -> None:
    found = forecast(10, [rows(10, 10)], [PACE])
    assert {choice.algorithm for choice in found.items_of} == {Algorithm.SERIAL}
    assert found.cached_tokens == 0


def test_a_job_without_items_takes_no_time() -> None:
    assert forecast(10, [], [PACE]).seconds == 0.0


def test_the_time_is_corrected_by_what_the_worker_has_measured() -> None:
    part = rows(10, 1_000)
    [as_stored, slower] = (forecast(1_000, [part], [replace(PACE, ratio=ratio)]).seconds for ratio in (1.0, 3.0))
    assert slower == pytest.approx(3 * as_stored)


def test_workers_share_a_job_that_is_larger_than_a_claim() -> None:
    short, long = [rows(10, 1_000)], [rows(250, 1_000)] * 40
    assert forecast(1_000, short, [replace(PACE, claim_seconds=1e6)] * 2).seconds == pytest.approx(
        forecast(1_000, short, [PACE]).seconds
    )
    alone = forecast(1_000, long, [PACE]).seconds
    assert forecast(1_000, long, [PACE] * 2).seconds == pytest.approx(alone / 2)
    assert forecast(1_000, long, [PACE, replace(PACE, ratio=3.0)]).seconds == pytest.approx(alone / (1 + 1 / 3))
