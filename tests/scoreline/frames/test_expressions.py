"""Expressions of Polars, and what SQL calls, give the same scores as a call."""

from __future__ import annotations

import pickle
import re
import warnings
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from scoreline import Client, InvalidRequest, ScorelineError, frames
from scoreline.client import doubts
from scoreline.frames import CostError
from scoreline.frames.expressions import scores_of
from scoreline.frames.functions import Function
from tests.scoreline.frames.conftest import LABELS, numbers


def test_an_expression_gives_structs_with_the_scores_of_a_call(
    reviews: pa.Table, asked: dict[str, Any], expected: list[list[float]]
) -> None:
    frame = pl.DataFrame(reviews).with_columns(query=pl.lit("Review: "))
    of_all = scores_of(pl.col("review"), **asked)
    del asked["query"]
    for query in (pl.col("query"), pl.lit("Review: ")):
        of_each = scores_of(pl.col("review"), query, **asked)
        found = frame.lazy().select(of_each.struct.unnest()).collect()
        assert numbers(found) == expected
    of_constant = scores_of(pl.lit("Room 0 was clean."), pl.col("query"), **asked).struct.unnest()
    assert [numbers(frame.head(rows).select(of_constant)) for rows in (0, 2)] == [[], [expected[0]] * 2]
    assert numbers(frame.select(of_all.struct.unnest())) == expected
    assert frame.select(of_all.struct.field("yes")).schema == {"yes": pl.Float64}


def test_an_expression_answers_questions_and_leaves_nulls_null(client: Client, asked: dict[str, Any]) -> None:
    questions = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}
    frame = pl.DataFrame({"body": ["Now!", None]})
    found = frame.select(scores_of(pl.col("body"), questions=questions, url=asked["url"]).struct.field("urgent"))
    assert found["urgent"].to_list() == [client.decide("Now!", questions)["urgent"], None]


def test_the_cap_of_a_function_holds_for_all_calls_together(asked: dict[str, Any], client: Client) -> None:
    function = Function({**asked, "max_items": 5})
    column = pa.chunked_array([["a", None], ["b"]])
    assert [row["yes"] is None for row in function(column).to_pylist()] == [False, True, False]
    before = len(list(client.jobs()))
    with pytest.raises(CostError, match="4 items are more than the 3 that max_items leaves"):
        function(pa.array(["a", "b", "c", "d"]))
    assert len(list(client.jobs())) == before
    assert len(function(pa.array(["c", "d", "e"]))) == 3
    of_tokens = Function({**asked, "max_tokens": client.dry_run("Review: ", ["a"], labels=LABELS).prompt_tokens})
    of_tokens(pa.array(["a"]))
    with pytest.raises(CostError, match="more than the 0 that max_tokens leaves"):
        of_tokens(pa.array(["a"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": ["a label of several tokens"]}, "several tokens"),
        ({"item_template": "no place"}, "{item}"),
        ({"item_column": "review"}, "a function is called with its columns: leave out item_column"),
    ],
)
def test_what_is_wrong_is_said_before_the_function_is_called(
    asked: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises((InvalidRequest, TypeError), match=re.escape(message)):
        Function({**asked, **options})


def test_a_function_warns_of_the_same_once(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "SMALL_LABEL_MASS", 2.0)  # so that every row is a reason to doubt the prompt
    function = Function(asked)
    rows = [f"item {n}" for n in range(200)]
    for some in (rows, rows[:150]):  # DuckDB calls it for some 2,000 rows at a time.
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            function(pa.array(some))
        assert len(found) == (1 if some is rows else 0), [str(one.message) for one in found]


def test_errors_and_what_is_asked_can_be_sent_to_other_processes(client: Client, asked: dict[str, Any]) -> None:
    wanted = frames.asking(item_column="review", **asked, api_key="secret")
    assert pickle.loads(pickle.dumps(wanted)) == wanted
    assert "secret" not in repr(wanted)
    error = InvalidRequest("invalid_request", "it is wrong", 400, param="items[3]", request_id="r")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (InvalidRequest, str(error), vars(error))
    with pytest.raises(ScorelineError) as caught:
        client.get("job_that_is_not_there")
    assert vars(pickle.loads(pickle.dumps(caught.value))) == vars(caught.value)
