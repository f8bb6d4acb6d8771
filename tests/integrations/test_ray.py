"""Datasets of Ray, on a local cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray

import scoreline.ray
from scoreline import Client, frames
from scoreline.frames import CostError
from tests.integrations.conftest import LABELS, asked, items_since
from tests.scoreline.running import Up

pytestmark = pytest.mark.integrations

SIZES = {"batch_size": 100, "workers": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture
def options(shared_up: Up) -> dict[str, Any]:
    """What is asked. The processes of the cluster do not see the environment of a test."""
    return asked(url=shared_up.url)


@pytest.fixture
def dataset(cluster: None, table: pa.Table) -> Any:
    return ray.data.from_arrow(table)


def scores(rows: list[dict[str, Any]]) -> dict[int, float | None]:
    return {row["number"]: row["yes"] for row in rows}


def test_a_dataset_gets_the_scores_of_calls_and_a_batch_that_is_computed_again_scores_nothing_twice(
    dataset: Any, options: dict[str, Any], client: Client, expected: dict[int, float | None]
) -> None:
    before = {job.id for job in client.jobs()}
    found = scoreline.ray.scored(dataset, run="of-ray", **SIZES, **options)
    for _ in range(2):  # It is lazy: each reads and scores it anew.
        rows = found.take_all()
        assert (len(rows), scores(rows)) == (len(expected), expected)
        assert items_since(client, before) == len(expected) - 1
    assert list(rows[0]) == ["number", "query", "item", "yes", "no", "label_mass"]


def test_a_scorer_is_what_map_batches_takes_and_must_name_its_run(
    dataset: Any, options: dict[str, Any], expected: dict[int, float | None]
) -> None:
    batches = {"batch_format": "pyarrow", "batch_size": 100}
    named = {**options, "run": "by-hand"}
    found = dataset.map_batches(scoreline.ray.Scorer, fn_constructor_kwargs=named, **batches)
    assert scores(found.take_all()) == expected
    with pytest.raises(TypeError, match="run"):
        scoreline.ray.Scorer(**options)
    with pytest.raises(TypeError, match="a batch knows no other"):
        scoreline.ray.Scorer(**named, max_items=1)


def test_a_process_that_is_killed_in_the_middle_loses_no_row_and_scores_none_twice(
    dataset: Any, options: dict[str, Any], client: Client, expected: dict[int, float | None], tmp_path: Path
) -> None:
    died = str(tmp_path / "died")

    def die_once(batch: pa.Table) -> pa.Table:
        if batch["number"][0].as_py() >= 200 and not os.path.exists(died):
            open(died, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    before = {job.id for job in client.jobs()}
    found = scoreline.ray.scored(dataset, **SIZES, **options)
    rows = found.map_batches(die_once, batch_format="pyarrow", batch_size=100).take_all()
    assert os.path.exists(died)
    assert (len(rows), scores(rows)) == (len(expected), expected)
    assert items_since(client, before) == len(expected) - 1


def test_caps_are_exact_and_hold_before_anything_is_scored(
    dataset: Any, table: pa.Table, options: dict[str, Any], client: Client
) -> None:
    cost = scoreline.ray.cost(dataset, **options)
    assert cost == frames.cost(table, **options)
    before = {job.id for job in client.jobs()}
    for cap in ({"max_items": cost.items - 1}, {"max_tokens": (cost.prompt_tokens or 0) - 1}):
        with pytest.raises(CostError):
            scoreline.ray.scored(dataset, **options, **cap)
    assert items_since(client, before) == 0
    scoreline.ray.scored(dataset, **options, max_items=cost.items, max_tokens=cost.prompt_tokens)


def test_what_is_wrong_is_said_in_one_line(dataset: Any, options: dict[str, Any]) -> None:
    with pytest.raises(frames.TableError, match="on_error must be one of"):
        scoreline.ray.scored(dataset, **{**options, "on_error": "ignore"})
    for changed, message in (
        ({"item_column": "itme"}, "has no column 'itme'"),
        ({"empty": "fail"}, "there is no text"),
    ):
        with pytest.raises(Exception, match=message):
            scoreline.ray.scored(dataset, **{**options, **changed}).take_all()


def test_questions_and_relevance_work_alike(cluster: None, shared_up: Up, client: Client) -> None:
    questions = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}
    dataset = ray.data.from_items([{"body": "Help!", "q": "help"}])
    (row,) = scoreline.ray.scored(dataset, questions=questions, state_column="body", url=shared_up.url).take_all()
    assert row["urgent"] == client.decide("Help!", questions)["urgent"]
    (row,) = scoreline.ray.scored(dataset, item_column="body", query_column="q", url=shared_up.url).take_all()
    assert row["relevance"] == client.rerank("help", ["Help!"]).results[0].relevance_score
    assert set(LABELS).isdisjoint(row)
