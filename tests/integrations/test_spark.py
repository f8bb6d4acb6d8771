"""Data frames of Spark, in local mode with its Java process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.sql import DataFrame, SparkSession

import scoreline.spark
from scoreline import Client, frames
from scoreline.frames import CostError
from tests.integrations.conftest import LABELS, QUERIES, asked, items_since
from tests.scoreline.running import Up

pytestmark = pytest.mark.integrations


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """Spark, which gives a task four tries."""
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.log.level": "OFF"}
    builder = SparkSession.builder.master("local[2,4]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def options(shared_up: Up) -> dict[str, Any]:
    return asked(url=shared_up.url)


@pytest.fixture
def frame(session: SparkSession, table: pa.Table) -> DataFrame:
    """The rows, those of a query in one partition and side by side."""
    return session.createDataFrame(table).repartition(3, "query").sortWithinPartitions("query", "number")


def scores(frame: DataFrame) -> list[tuple[int, float | None]]:
    return sorted((row["number"], row["yes"]) for row in frame.select("number", "yes").collect())


def test_a_data_frame_gets_the_scores_of_calls_and_a_second_program_scores_nothing_twice(
    frame: DataFrame, options: dict[str, Any], client: Client, expected: dict[int, float | None], tmp_path: Path
) -> None:
    before = {job.id for job in client.jobs()}
    for program in ("one", "another"):
        found = scoreline.spark.scored(frame, run="of-spark", **options)
        found.write.parquet(str(tmp_path / program))
        written = pq.read_table(tmp_path / program).to_pydict()
        assert sorted(zip(written["number"], written["yes"], strict=True)) == sorted(expected.items())
        jobs = [job for job in client.jobs() if job.id not in before]
        assert sorted(job.total_items for job in jobs) == [99, 100, 100, 100], "rows of a query are one job"
    assert found.columns == ["number", "query", "item", "yes", "no", "label_mass"]


def test_a_task_that_is_killed_loses_no_row_and_scores_none_twice(
    frame: DataFrame, options: dict[str, Any], client: Client, expected: dict[int, float | None], tmp_path: Path
) -> None:
    died = str(tmp_path / "died")

    def die_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if QUERIES[2] in batch["query"].to_pylist() and not os.path.exists(died):
                open(died, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)

    before = {job.id for job in client.jobs()}
    found = scoreline.spark.scored(frame, **options)
    assert scores(found.mapInArrow(die_once, found.schema)) == sorted(expected.items())
    assert os.path.exists(died)
    assert items_since(client, before) == len(expected) - 1


def test_caps_are_exact_and_hold_before_anything_is_scored(
    frame: DataFrame, table: pa.Table, options: dict[str, Any], client: Client
) -> None:
    cost = scoreline.spark.cost(frame, **options)
    assert cost == frames.cost(table, **options)
    before = {job.id for job in client.jobs()}
    for cap in ({"max_items": cost.items - 1}, {"max_tokens": (cost.prompt_tokens or 0) - 1}):
        with pytest.raises(CostError):
            scoreline.spark.scored(frame, **options, **cap)
    assert items_since(client, before) == 0
    scoreline.spark.scored(frame, **options, max_items=cost.items, max_tokens=cost.prompt_tokens)


def test_what_is_wrong_is_said_in_one_line(frame: DataFrame, options: dict[str, Any]) -> None:
    for changed, message in (
        ({"item_column": "itme"}, "the table has no column 'itme'"),
        ({"template": "none", "labels": ()}, "the service has no template 'none'"),
    ):
        with pytest.raises(frames.TableError, match=message):
            scoreline.spark.scored(frame, **{**options, **changed})
    with pytest.raises(frames.TableError, match="Spark can't tell 'Yes' from 'yes'"):
        scoreline.spark.scored(frame.withColumnRenamed("number", "Yes"), **options)
    with pytest.raises(Exception, match="there is no text in 'item'"):
        scoreline.spark.scored(frame, **{**options, "empty": "fail"}).collect()


def test_questions_and_relevance_work_alike(session: SparkSession, client: Client, shared_up: Up) -> None:
    questions: dict[str, Any] = {
        "urgent": {"type": "noul", "instructions": "Is it urgent?"},
        "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": None, "sales": None}},
    }
    frame = session.createDataFrame([("Help!", "help")], "body string, q string")
    (row,) = scoreline.spark.scored(frame, questions=questions, state_column="body", url=shared_up.url).collect()
    decision = client.decide("Help!", questions)
    assert (row["urgent"], row["team"]) == (decision["urgent"], decision["team"])
    (row,) = scoreline.spark.scored(frame, item_column="body", query_column="q", url=shared_up.url).collect()
    assert row["relevance"] == client.rerank("help", ["Help!"]).results[0].relevance_score
    frame = frame.selectExpr("*", "array(' yes', ' no') AS answers")
    of_row = {"label_columns": ["answers"], "item_column": "body", "query_column": "q", "url": shared_up.url}
    (row,) = scoreline.spark.scored(frame, **of_row).collect()
    assert row["scores"] == client.score("help", ["Help!"], labels=LABELS).scores[0]
    empty = session.createDataFrame([], frame.schema)
    assert scoreline.spark.scored(empty, item_column="body", query_column="q", url=shared_up.url).collect() == []
