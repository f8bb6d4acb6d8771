"""Rankings as clients of Text Embeddings Inference ask for them: ``/rerank`` with ``texts``, answered by a list."""

from __future__ import annotations

from typing import Any

import pytest
from numpy.testing import assert_allclose
from scipy.special import logit

from tests.api.serving import RunningApi

QUERY = "What is in England"
TEXTS = ["Paris", "London", "London", "emoji 🎉"]


def ask(api: RunningApi, **changes: Any) -> Any:
    return api.client.post("/rerank", json={"query": QUERY, "texts": TEXTS} | changes)


def test_texts_are_answered_with_a_list_of_the_same_scores(api: RunningApi) -> None:
    ours = api.client.post("/rerank", json={"query": QUERY, "documents": TEXTS}).json()["results"]
    assert [one["score"] for one in ours] == [one["relevance_score"] for one in ours]
    plain = ask(api, truncate=False, truncation_direction="Right", raw_scores=False)
    assert plain.json() == [{"index": one["index"], "score": one["score"]} for one in ours]
    assert ask(api, return_text=True).json() == [
        {"index": one["index"], "score": one["score"], "text": TEXTS[one["index"]]} for one in ours
    ]
    assert ask(api, texts=[]).json() == []
    assert ask(api, top_n=2).json() == plain.json()[:2]


@pytest.mark.parametrize(
    ("field", "value", "harmless"),
    [
        ("documents", ["London"], None),
        ("return_documents", True, False),
        ("return_provenance", True, False),
        ("threshold", "sure", None),
        ("instruct", "Find what contradicts the query.", None),
        ("use_activation", False, True),
        ("top_k", 1, -1),
    ],
)
def test_what_would_be_ignored_without_a_word_is_refused(
    api: RunningApi, field: str, value: object, harmless: object
) -> None:
    answer = ask(api, **{field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", field)
    assert ask(api, **{field: harmless}).json() == ask(api).json()


def test_texts_that_are_too_long_are_cut_where_a_client_asks_for_it(api: RunningApi) -> None:
    texts = ["London", "London " * 9_000]
    answer = ask(api, texts=texts, truncate=True, return_text=True)
    assert answer.status_code == 200, answer.text
    scores = {one["index"]: one["score"] for one in answer.json()}
    assert scores.keys() == {0, 1}
    (alone,) = ask(api, texts=texts[:1]).json()
    assert scores[0] == alone["score"]
    shorter = texts[1][: len("London ") * 300]
    assert ask(api, texts=[shorter], truncate=True).json() == ask(api, texts=[shorter]).json()


@pytest.mark.parametrize("template", ["yes-no", None])
def test_raw_scores_are_the_logits_of_the_relevance(api: RunningApi, template: str | None) -> None:
    plain, raw = (ask(api, raw_scores=raw, template=template).json() for raw in (False, True))
    assert [one["index"] for one in raw] == [one["index"] for one in plain]
    assert_allclose([one["score"] for one in raw], logit([one["score"] for one in plain]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"texts": "London"}, "invalid_request", "texts"),
        ({"texts": ["London", 3]}, "invalid_request", "texts"),
        ({"texts": ["London", {"text": "Paris"}]}, "invalid_request", "texts"),
        ({"texts": ["London", "a b" * 9_000]}, "context_length_exceeded", "texts[1]"),
        ({"query": None}, "missing_query", "query"),
        ({"raw_scores": "yes"}, "invalid_request", "raw_scores"),
        ({"return_text": 1}, "invalid_request", "return_text"),
        ({"truncate": "yes"}, "invalid_request", "truncate"),
        ({"truncate": True, "truncation_direction": "Left"}, "unsupported_parameter", "truncation_direction"),
        ({"truncate": True, "query": "a b" * 9_000}, "context_length_exceeded", "texts[0]"),
        ({"truncation_direction": "Up"}, "invalid_request", "truncation_direction"),
        ({"model": "gpt-17"}, "model_not_found", "model"),
    ],
)
def test_what_cannot_be_ranked_is_refused(api: RunningApi, changes: dict[str, Any], code: str, param: str) -> None:
    answer = ask(api, **changes)
    error = answer.json()["error"]
    assert 400 <= answer.status_code < 500
    assert (error["code"], error["param"]) == (code, param)
    assert "documents" not in error["message"]
