"""Functions of DuckDB score what a query asks for."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import scoreline.duckdb
from scoreline import Client, frames
from tests.integrations.conftest import LABELS, QUERIES, asked, items_since
from tests.scoreline.running import Up
from tests.services import wait_until

pytestmark = pytest.mark.integrations

URGENT = {"type": "noul", "instructions": "Is it urgent?"}


@pytest.fixture
def connection(table: pa.Table) -> Iterator[Any]:
    with duckdb.connect() as connection:
        connection.register("arrow", table)
        connection.execute("CREATE TABLE rows AS SELECT * FROM arrow")
        yield connection


def test_a_function_gives_each_row_its_scores_and_a_null_for_a_null(
    connection: Any, client: Client, expected: dict[int, float | None]
) -> None:
    before = {job.id for job in client.jobs()}
    scoreline.duckdb.register(connection, "answers", labels=LABELS)
    found = connection.sql("SELECT number, s.yes FROM (SELECT number, answers(query, item) AS s FROM rows)").fetchall()
    assert dict(found) == expected
    jobs = [job for job in client.jobs() if job.id not in before]
    assert sorted(job.total_items for job in jobs) == [99, 100, 100, 100], "rows of a query are one job"


def test_a_function_with_a_query_of_its_own_takes_items_and_relevance_needs_no_labels(
    connection: Any, client: Client
) -> None:
    scoreline.duckdb.register(connection, "of_rooms", query=QUERIES[0], labels=LABELS)
    ((found,),) = connection.sql("SELECT of_rooms('a bed').yes").fetchall()
    assert found == client.score(QUERIES[0], ["a bed"], labels=LABELS).scores[0][0]
    scoreline.duckdb.register(connection, "relevance")
    ((found,),) = connection.sql("SELECT relevance('beds', 'a bed').relevance").fetchall()
    assert found == client.rerank("beds", ["a bed"]).results[0].relevance_score


def test_a_function_answers_questions_about_a_text(connection: Any, client: Client) -> None:
    questions: dict[str, Any] = {
        "urgent": URGENT,
        "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": None, "sales": None}},
    }
    scoreline.duckdb.register(connection, "triage", questions=questions)
    (row,) = connection.sql("SELECT t.urgent, t.team, t.team_confidence FROM (SELECT triage('Help!') AS t)").fetchall()
    decision = client.decide("Help!", questions)
    assert row == (decision["urgent"], decision["team"], decision.answers["team"].confidence)


def test_a_cap_ends_the_query_before_more_is_scored(connection: Any, client: Client) -> None:
    before = {job.id for job in client.jobs()}
    scoreline.duckdb.register(connection, "capped", labels=LABELS, max_items=398)
    with pytest.raises(duckdb.Error, match="CostError: 399 items are more than the 398 that max_items leaves"):
        connection.sql("SELECT capped(query, item).yes FROM rows").fetchall()
    assert items_since(client, before) == 0
    # Whoever runs the cell of a notebook again has the cap anew.
    scoreline.duckdb.register(connection, "capped", labels=LABELS, max_items=399)
    assert len(connection.sql("SELECT capped(query, item).yes FROM rows").fetchall()) == 400


def test_a_cancelled_query_cancels_its_jobs(shared_up: Up, connection: Any, client: Client) -> None:
    function = scoreline.duckdb.register(connection, "answers", labels=LABELS)
    failed: list[str] = []

    def select() -> None:
        try:
            connection.sql("SELECT answers(query, item).yes FROM rows").fetchall()
        except duckdb.Error as error:
            failed.append(str(error))

    query = threading.Thread(target=select)
    with shared_up.worker_frozen():
        query.start()
        wait_until(lambda: len(list(client.jobs(status="queued"))) == len(QUERIES), "its jobs wait")
        function.cancel()
        query.join(30)
        assert not list(client.jobs(status="queued"))
    assert "the call was cancelled" in failed[0]


PROGRAM = """
import duckdb, scoreline.duckdb
connection = duckdb.connect()
connection.execute("SET threads = 1")
scoreline.duckdb.register(connection, "answers", labels=[" yes", " no"])
connection.sql("SELECT answers('query ' || n % 4, 'item ' || n).yes FROM range(50_000) t(n)").fetchall()
"""


def test_ctrl_c_ends_a_query_of_one_thread_and_cancels_its_jobs(shared_up: Up, client: Client) -> None:
    with shared_up.worker_frozen():
        program = subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True)
        wait_until(lambda: len(list(client.jobs(status="queued"))) == len(QUERIES), "its jobs wait")
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=30)
        assert not list(client.jobs(status="queued"))
    assert program.returncode
    assert "Interrupt" in said


def test_a_query_of_duckdb_is_a_stream_whose_rows_can_be_scored(
    connection: Any, expected: dict[int, float | None]
) -> None:
    found = pl.from_arrow(frames.score(connection.sql("FROM rows"), **asked()))
    assert isinstance(found, pl.DataFrame)
    assert dict(found.select("number", "yes").rows()) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": LABELS, "on_error": "ignore"}, "on_error must be one of"),
        ({"template": "none"}, "the service has no template 'none'"),
        ({"questions": "nowhere.json"}, "nowhere.json can't be read"),
        ({"questions": {"Urgent": URGENT, "urgent": URGENT}}, "DuckDB can't tell 'Urgent' from 'urgent'"),
    ],
)
def test_what_is_wrong_is_said_when_a_function_is_registered(
    connection: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(frames.TableError, match=message):
        scoreline.duckdb.register(connection, "wrong", **options)
