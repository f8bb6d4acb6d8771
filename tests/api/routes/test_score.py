"""The answers of /v1/score: the four patterns of RFC-000, the cases of RFC-008 by name, and the softmax of ADR-001.

The scores of the made-up model depend on every token of a sequence and on nothing else. So these tests show how the
front end and the store process a request: which sequences are scored, for which labels, in which order, and how scores
are converted. The scores of real models, and the isolation of items from each other, are tested in tests/model.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sqlalchemy import event

from scoring.layout import ChunkWork, GroupWork, LabelScores, ScoredChunk
from tests.api import tiny_model
from tests.api.serving import RunningApi, StandInWorker, running_api, score_chunk
from tests.api.tiny_model import TinyModel

EXACT: dict[str, Any] = {"rtol": 1e-6, "atol": 0.0}
"""The tolerance of float32, because the made-up logits are float32."""


# RFC-000: four patterns


def test_pattern_1_classification(api: RunningApi, model: TinyModel) -> None:
    query = "This movie was great! Sentiment:"
    labels = [model.token(" positive"), model.token(" negative")]
    answer = api.score(query=query, items=[""], label_token_ids=labels)
    assert_allclose(answer["scores"], model.text_scores(query, [""], labels), **EXACT)


def test_pattern_2_multiple_choice(api: RunningApi, model: TinyModel) -> None:
    query = "What is 2+2? The answer is"
    labels = [model.token(text) for text in (" 3", " 4", " 5")]
    answer = api.score(query=query, items=[""], label_token_ids=labels, apply_softmax=True)
    expected = model.text_scores(query, [""], labels)
    assert_allclose(answer["scores"], expected / expected.sum(), **EXACT)
    assert int(np.argmax(answer["scores"][0])) == int(np.argmax(expected[0]))


def test_pattern_3_ranking_candidates(api: RunningApi, model: TinyModel) -> None:
    query = "The capital of France is"
    labels = [model.token(text) for text in (" Paris", " London", " Berlin")]
    answer = api.score(query=query, items=[""], label_token_ids=labels)
    expected = model.text_scores(query, [""], labels)
    assert_allclose(answer["scores"], expected, **EXACT)
    assert np.argsort(answer["scores"][0]).tolist() == np.argsort(expected[0]).tolist()


def test_pattern_4_continuation_quality(api: RunningApi, model: TinyModel) -> None:
    query, items = "The capital of", [" France is", " Germany is", " Japan is"]
    labels = [model.token(" Paris")]
    answer = api.score(query=query, items=items, label_token_ids=labels)
    assert np.shape(answer["scores"]) == (3, 1)
    assert_allclose(answer["scores"], model.text_scores(query, items, labels), **EXACT)


# RFC-008, "Testing strategy": the cases that concern the API


def test_multi_item_equals_single_item(api: RunningApi, model: TinyModel) -> None:
    query, items, labels = "The answer is", [" yes", " no", " maybe"], [70, 71, 72]
    together = api.score(query=query, items=items, label_token_ids=labels)["scores"]
    apart = [api.score(query=query, items=[item], label_token_ids=labels)["scores"][0] for item in items]
    assert together == apart


def test_single_item(api: RunningApi) -> None:
    assert len(api.score(query="Query", items=[" item"], label_token_ids=[70])["scores"]) == 1


def test_many_items(api: RunningApi, model: TinyModel) -> None:
    items = [f" item{n}" for n in range(100)]
    answer = api.score(query="Query", items=items, label_token_ids=[70, 80])
    assert_allclose(answer["scores"], model.text_scores("Query", items, [70, 80]), **EXACT)


def test_unicode_items(api: RunningApi, model: TinyModel) -> None:
    items = [" 日本語", " emoji 🎉", " mixed é", "\u0301", "\0"]
    answer = api.score(query="Query", items=items, label_token_ids=[70])
    assert_allclose(answer["scores"], model.text_scores("Query", items, [70]), **EXACT)


def test_apply_softmax_false(api: RunningApi, model: TinyModel) -> None:
    """Scores are exp(logprob) over the whole vocabulary, so a row need not sum to 1."""
    everything = list(range(256))
    scores = api.score(query="Query", items=[" a", " b"], label_token_ids=everything)["scores"]
    assert all(0 <= score <= 1 for row in scores for score in row)
    assert all(sum(row) < 0.999 for row in scores)
    assert_allclose(scores, model.text_scores("Query", [" a", " b"], everything), **EXACT)


def test_deterministic_consistency(api: RunningApi) -> None:
    body = {"query": "The answer is", "items": [" yes", " no"], "label_token_ids": [70, 71]}
    assert api.score(**body)["scores"] == api.score(**body)["scores"]


def test_empty_items_list(api: RunningApi) -> None:
    answer = api.score(query="Query", items=[], label_token_ids=[70], return_logprobs=True)
    assert answer["scores"] == []
    assert answer["logprobs"] == []
    assert answer["usage"]["prompt_tokens"] == 0


def test_empty_item_strings_accepted(api: RunningApi, model: TinyModel) -> None:
    answer = api.score(query="Query", items=["", " valid", ""], label_token_ids=[70, 71])
    assert_allclose(answer["scores"], model.text_scores("Query", ["", " valid", ""], [70, 71]), **EXACT)
    tokens = api.score(query=[65, 66], items=[[], [67]], label_token_ids=[70, 71])
    assert_allclose(tokens["scores"], model.scores([[65, 66], [65, 66, 67]], [70, 71]), **EXACT)


def test_empty_query_tokens(api: RunningApi) -> None:
    response = api.client.post("/v1/score", json={"query": [], "items": [[1, 2], [3, 4]], "label_token_ids": [1, 2, 3]})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "empty_query")


# ADR-001, over HTTP


def test_softmax_rows_sum_to_one(api: RunningApi) -> None:
    items = [f" item{n}" for n in range(20)]
    answer = api.score(query="Query", items=items, label_token_ids=[70, 71, 72], apply_softmax=True)
    assert_allclose(np.sum(answer["scores"], axis=1), np.ones(20), rtol=1e-12)


@pytest.mark.parametrize("apply_softmax", [False, True])
def test_labels_of_probability_zero_score_zero_and_have_null_logprobs(on_sqlite: Any, apply_softmax: bool) -> None:
    api, worker = on_sqlite
    worker.score_chunk = _impossible
    response = api.client.post(
        "/v1/score",
        json={
            "query": "Query",
            "items": ["", " a"],
            "label_token_ids": [70, 71],
            "apply_softmax": apply_softmax,
            "return_logprobs": True,
            "return_logits": True,
        },
    )
    answer = json.loads(response.content, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert answer["scores"] == [[0, 0], [0, 0]]
    assert answer["logprobs"] == answer["logits"] == [[None, None], [None, None]]


def _impossible(_: GroupWork, chunk: ChunkWork) -> ScoredChunk:
    nothing = np.full((len(chunk.rows), len(chunk.label_token_ids)), -np.inf, np.float32)
    return ScoredChunk(chunk.id, LabelScores(nothing, nothing), 0)


def test_softmax_is_computed_in_float64(on_sqlite: Any) -> None:
    """The smaller of two probabilities would be 0 in bfloat16 and lose most digits in float32."""
    api, worker = on_sqlite

    def far_apart(_: GroupWork, chunk: ChunkWork) -> ScoredChunk:
        logits = np.tile(np.array([0.0, -50.0], np.float32), (len(chunk.rows), 1))
        return ScoredChunk(chunk.id, LabelScores(logits, None), 0)

    worker.score_chunk = far_apart
    (row,) = api.score(query="Query", items=[""], label_token_ids=[70, 71], apply_softmax=True)["scores"]
    assert row[1] == pytest.approx(math.exp(-50) / (1 + math.exp(-50)), rel=1e-12)


# The response


def test_the_response_has_the_documented_fields(api: RunningApi, model: TinyModel) -> None:
    everything = list(range(256))
    answer = api.score(query="The capital of", items=[" France is", " Japan"], label_token_ids=everything)
    assert set(answer) == {"id", "object", "model", "created", "scores", "label_mass", "usage", "warnings"}
    assert (answer["object"], answer["model"], answer["warnings"]) == ("scoring", "tiny", [])
    assert isinstance(answer["created"], int)
    tokens = sum(len(model.encode("The capital of" + item)) for item in (" France is", " Japan"))
    assert answer["usage"] == {
        "prompt_tokens": tokens,
        "completion_tokens": 0,
        "total_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "reused_items": 0,
    }


def test_the_share_of_the_labels_is_in_every_answer(api: RunningApi, model: TinyModel) -> None:
    body: dict[str, Any] = {"query": "Query", "items": [" a", " b"], "label_token_ids": [70, 71, 70]}
    expected = model.text_scores("Query", [" a", " b"], [70, 71]).sum(axis=1)
    answer = api.score(**body)
    assert_allclose(answer["label_mass"], expected, **EXACT)
    for options in ({}, {"return_logprobs": True}, {"temperature": 2.0}):
        assert api.score(**body, apply_softmax=True, **options)["label_mass"] == answer["label_mass"]
    job = api.wait(api.submit(**body)["id"])
    assert job["result"]["label_mass"] == answer["label_mass"]
    lines = api.client.get(job["urls"]["scores"]).json()["data"]
    assert [line["label_mass"] for line in lines] == answer["label_mass"]


@pytest.mark.parametrize("apply_softmax", [False, True])
def test_items_whose_labels_have_next_to_no_probability_are_warned_of_everywhere(
    on_sqlite: Any, apply_softmax: bool
) -> None:
    api, worker = on_sqlite

    def improbable(_: GroupWork, chunk: ChunkWork) -> ScoredChunk:
        logprobs = np.full((len(chunk.rows), 2), -1.0, np.float32)
        logprobs[1] = -20.0
        return ScoredChunk(chunk.id, LabelScores(logprobs, logprobs), 0)

    worker.score_chunk = improbable
    body = {"query": "Query", "items": ["", " a"], "label_token_ids": [70, 71], "apply_softmax": apply_softmax}
    (warning,) = api.score(**body)["warnings"]
    assert "for 1 of 2 items, such as items[1]" in warning
    job = api.wait(api.submit(**body)["id"])
    assert job["result"]["warnings"] == [warning]


@pytest.mark.parametrize("apply_softmax", [False, True])
def test_logprobs_and_logits_are_returned_beside_the_scores_if_requested(
    api: RunningApi, model: TinyModel, apply_softmax: bool
) -> None:
    body = {"query": "Query", "items": [" a", " b"], "label_token_ids": [70, 71], "apply_softmax": apply_softmax}
    plain = api.score(**body)
    answer = api.score(**body, return_logprobs=True, return_logits=True)
    sequences = [model.encode("Query a"), model.encode("Query b")]
    assert_allclose(answer["logprobs"], [tiny_model.logprobs(s)[[70, 71]] for s in sequences], rtol=1e-7)
    assert_allclose(answer["logits"], [tiny_model.logits(s)[[70, 71]] for s in sequences], rtol=1e-7)
    assert answer["scores"] == plain["scores"]
    assert "logprobs" not in plain
    assert "logits" not in plain


def test_text_labels_score_like_their_token_ids(api: RunningApi, model: TinyModel) -> None:
    body = {"query": "The capital of France is", "items": [""]}
    by_text = api.score(**body, labels=[" Paris", " London"])
    by_id = api.score(**body, label_token_ids=[model.token(" Paris"), model.token(" London")])
    assert by_text["scores"] == by_id["scores"]


def test_each_repeated_label_has_a_column_of_its_own(api: RunningApi) -> None:
    ((first, second, again),) = api.score(query="Query", items=[""], label_token_ids=[70, 71, 70])["scores"]
    assert first == again != second


def test_a_single_text_or_flat_list_is_one_item(api: RunningApi, model: TinyModel) -> None:
    text = api.score(query="Query", items=" a", label_token_ids=[70])
    assert_allclose(text["scores"], model.text_scores("Query", [" a"], [70]), **EXACT)
    tokens = api.score(query=[65, 66], items=[67, 68], label_token_ids=[70])
    assert_allclose(tokens["scores"], model.scores([[65, 66, 67, 68]], [70]), **EXACT)


def test_item_first_scores_the_item_before_the_query(api: RunningApi, model: TinyModel) -> None:
    answer = api.score(query=" is in England", items=["London", "Paris"], label_token_ids=[70], item_first=True)
    sequences = [model.encode("London is in England"), model.encode("Paris is in England")]
    assert_allclose(answer["scores"], model.scores(sequences, [70]), **EXACT)


def test_delimiter_mode_scores_query_delimiter_item_and_warns_that_it_ignores_item_first(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, multi_item_scoring_delimiter=0) as (api, _):
        answer = api.score(query="The capital", items=[" of", ""], label_token_ids=[70], item_first=True)
        query = model.encode("The capital")
        sequences = [[*query, 0, *model.encode(" of")], [*query, 0]]
        assert_allclose(answer["scores"], model.scores(sequences, [70]), **EXACT)
        assert any("item_first" in warning for warning in answer["warnings"])


def test_unknown_fields_are_ignored_with_a_warning(api: RunningApi) -> None:
    body = {"query": "Query", "items": [""], "label_token_ids": [70]}
    answer = api.score(**body, temprature=1, priority="bulk", **{"x" * 5000: 1})
    assert answer["scores"] == api.score(**body)["scores"]
    assert [warning for warning in answer["warnings"] if "temprature" in warning]
    assert [warning for warning in answer["warnings"] if "priority" in warning]
    assert max(map(len, answer["warnings"])) < 200
    many = api.score(**body, **{f"field{n}": n for n in range(1000)})
    assert len(many["warnings"]) < 20


def test_a_call_of_several_chunks_has_each_chunk_scored_once(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, worker = on_sqlite
    scored = []

    def count(group: GroupWork, chunk: ChunkWork) -> ScoredChunk:
        scored.append(chunk.id)
        return score_chunk(group, chunk)

    worker.score_chunk = count
    items = [f" item{n}" for n in range(1000)]
    assert len(api.score(query="Query", items=items, label_token_ids=[70])["scores"]) == 1000
    assert len(scored) == len(set(scored)) > 1


def test_the_answer_to_a_repeated_call_reads_its_job_once(api: RunningApi) -> None:
    body = {"query": "Query", "items": [" read once"], "label_token_ids": [70]}
    headers = {"Idempotency-Key": "read-once"}
    first = api.client.post("/v1/score", json=body, headers=headers)
    reads: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT") and "jobs.label_token_ids" in statement:
            reads.append(statement)

    engine = api.app.state.service.store.database.engine
    event.listen(engine, "before_cursor_execute", record)
    again = api.client.post("/v1/score", json=body, headers=headers)
    event.remove(engine, "before_cursor_execute", record)
    assert again.json() == first.json()
    assert len(reads) == 1
