"""Rankings: the requests and answers of Cohere and Jina, by the scores of the deployment's template."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from api.requests.reranking import RERANK
from scoring.layout import ChunkWork, GroupWork, LabelScores, ScoredChunk
from tests.api import tiny_model
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api, score_chunk
from tests.api.tiny_model import TinyModel

QUERY = "What is in England"
DOCUMENTS = ["London", "Paris is in France", "The answer is 4", "", "item after item"]
BODY: dict[str, Any] = {"query": QUERY, "documents": DOCUMENTS}
PROMPT = "Query: {}\nDocument: {}\nQuestion: Is the document relevant to the query? Answer yes or no.\nAnswer:"


def rank(
    api: RunningApi, path: str = "/v1/rerank", headers: dict[str, str] | None = None, **body: Any
) -> dict[str, Any]:
    response = api.client.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def error(api: RunningApi, **body: Any) -> tuple[int, str, str | None]:
    response = api.client.post("/v1/rerank", json=body)
    found = response.json()["error"]
    return response.status_code, found["code"], found["param"]


def expected(model: TinyModel, documents: list[str], query: str = QUERY) -> np.ndarray:
    labels = [model.token(" yes"), model.token(" no")]
    logits = [tiny_model.logits(model.encode(PROMPT.format(query, document)))[labels] for document in documents]
    return np.asarray(softmax(np.stack(logits).astype(float), axis=1)[:, 0])


def test_documents_are_sorted_by_the_relevance_of_the_template(api: RunningApi, model: TinyModel) -> None:
    answer = rank(api, **BODY)
    relevance = expected(model, DOCUMENTS)
    assert [result["index"] for result in answer["results"]] == np.argsort(-relevance).tolist()
    assert_allclose([result["relevance_score"] for result in answer["results"]], np.sort(relevance)[::-1], rtol=1e-6)
    labels = [model.token(" yes"), model.token(" no")]
    mass = model.scores([model.encode(PROMPT.format(QUERY, document)) for document in DOCUMENTS], labels).sum(axis=1)
    for result in answer["results"]:
        assert result["label_mass"] == pytest.approx(mass[result["index"]], rel=1e-6)
        assert result["document"] == {"text": DOCUMENTS[result["index"]]}
    tokens = sum(len(model.encode(PROMPT.format(QUERY, document))) for document in DOCUMENTS)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer["meta"] == {"billed_units": {"search_units": 1}}
    assert answer["model"] == "tiny"


@pytest.mark.parametrize("path", RERANK)
@pytest.mark.parametrize("wanted", [None, True, False])
def test_documents_are_returned_as_the_path_or_the_request_says(
    api: RunningApi, path: str, wanted: bool | None
) -> None:
    results = rank(api, path, **BODY, return_documents=wanted)["results"]
    returned = path != "/v2/rerank" if wanted is None else wanted
    assert all(("document" in result) is returned for result in results)


def test_texts_and_objects_are_ranked_alike_and_top_n_cuts_behind_sorting(api: RunningApi) -> None:
    whole = rank(api, **BODY)["results"]
    objects = [{"text": document, "title": "ignored"} for document in DOCUMENTS]
    assert rank(api, query=QUERY, documents=objects)["results"] == whole
    assert rank(api, **BODY, top_n=2)["results"] == whole[:2]
    assert rank(api, **BODY, top_n=99)["results"] == whole


def test_equal_relevance_is_sorted_by_index(api: RunningApi) -> None:
    results = rank(api, query=QUERY, documents=["London"] * 7, top_n=5)["results"]
    assert [result["index"] for result in results] == [0, 1, 2, 3, 4]


def test_no_documents_give_no_results(api: RunningApi) -> None:
    answer = rank(api, query=QUERY, documents=[])
    assert (answer["results"], answer["warnings"], answer["usage"]["total_tokens"]) == ([], [], 0)


def test_an_instruction_and_another_template_change_the_prompt(api: RunningApi, model: TinyModel) -> None:
    instructed = rank(api, query=QUERY, documents=["London"], instruction="The answer")["results"][0]
    labels = [model.token(" yes"), model.token(" no")]
    logits = tiny_model.logits(model.encode("The answer\n" + PROMPT.format(QUERY, "London")))[labels]
    assert instructed["relevance_score"] == pytest.approx(softmax(logits.astype(float))[0], rel=1e-6)
    other = rank(api, query=QUERY, documents=["London"], template="demonstration")["results"][0]
    logits = tiny_model.logits(model.encode(f"Query: {QUERY}\nDocument: London\nRelevant:"))[labels]
    assert other["relevance_score"] == pytest.approx(softmax(logits.astype(float))[0], rel=1e-6)


def test_a_special_token_in_a_query_or_document_is_text(api: RunningApi, model: TinyModel) -> None:
    documents = [f"London{tiny_model.END}", "London"]
    plain, spelled = (rank(api, query=QUERY, documents=[text])["usage"]["prompt_tokens"] for text in documents[::-1])
    assert spelled > plain + 1, "more than one token"
    asked = rank(api, query=tiny_model.END + QUERY, documents=["London"])
    assert asked["usage"]["prompt_tokens"] == spelled
    cut = rank(api, query=QUERY, documents=documents, max_tokens_per_doc=len(model.encode(documents[0])))
    assert cut["results"] == rank(api, query=QUERY, documents=documents)["results"], "it counts as one token"


def test_documents_are_cut_only_if_asked_for_and_the_answer_says_how_many(api: RunningApi, model: TinyModel) -> None:
    documents = ["London is in England. I saw London.", "Paris", "emoji 🎉🎉", "The answer is 4 and 5 yes no"]
    uncut = rank(api, query=QUERY, documents=documents, max_tokens_per_doc=1000)
    assert rank(api, query=QUERY, documents=documents, max_tokens_per_doc=0)["results"] == uncut["results"]
    assert not [warning for warning in uncut["warnings"] if "cut" in warning]
    answer = rank(api, query=QUERY, documents=documents, max_tokens_per_doc=6)
    assert "3 of 4 documents were cut behind their first 6 tokens" in answer["warnings"]
    beginnings = [model.decode(model.encode(document)[:6]) for document in documents]
    # Of the third document, the sixth token is a part of an emoji, which is left out as a whole.
    assert "\ufffd" in beginnings[2]
    beginnings = [beginning.rstrip("\ufffd") for beginning in beginnings]
    relevance = expected(model, beginnings)
    for result in answer["results"]:
        assert result["relevance_score"] == pytest.approx(relevance[result["index"]], rel=1e-6)
        assert result["document"]["text"] == documents[result["index"]]


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"documents": None}, "missing_items", "documents"),
        ({"documents": "London"}, "invalid_request", "documents"),
        ({"documents": ["a", 1]}, "invalid_request", "documents[1]"),
        ({"documents": ["a", {"title": "b"}]}, "invalid_request", "documents[1]"),
        ({"documents": ["a", "word " * 600]}, "context_length_exceeded", "documents[1]"),
        ({"query": "word " * 600}, "context_length_exceeded", "documents[0]"),
        ({"documents": ["a"] * 1001}, "request_too_large", "documents"),
        ({"documents": ["a", "b" * 1_000_001]}, "request_too_large", "documents[1]"),
        ({"query": None}, "missing_query", "query"),
        ({"query": ""}, "empty_query", "query"),
        ({"query": [1, 2]}, "invalid_request", "query"),
        ({"top_n": 0}, "invalid_request", "top_n"),
        ({"top_n": True}, "invalid_request", "top_n"),
        ({"max_tokens_per_doc": 1.5}, "invalid_request", "max_tokens_per_doc"),
        ({"return_documents": "yes"}, "invalid_request", "return_documents"),
        ({"instruction": 1}, "invalid_request", "instruction"),
        ({"template": "none"}, "invalid_template", "template"),
        ({"template": "qwen3-reranker"}, "invalid_template", "template"),
        ({"model": "rerank-v3.5"}, "model_not_found", "model"),
        ({"rank_fields": ["title"]}, "unsupported_parameter", "rank_fields"),
        ({"timeout": 0}, "invalid_request", "timeout"),
    ],
)
def test_an_error_names_the_place_in_the_words_of_the_request(
    api: RunningApi, changes: dict[str, Any], code: str, param: str
) -> None:
    status, found, where = error(api, **BODY | changes)
    assert (found, where) == (code, param)
    assert status == {"request_too_large": 413, "model_not_found": 404}.get(code, 400)


def test_the_message_of_an_error_speaks_of_documents(api: RunningApi) -> None:
    response = api.client.post("/v1/rerank", json=BODY | {"documents": ["a", "word " * 600]})
    assert "documents[1]" in response.json()["error"]["message"]
    assert "items" not in response.json()["error"]["message"]
    number = api.client.post("/v1/rerank", json=BODY | {"query": 5})
    assert number.json()["error"]["message"] == "query must be a string", "a ranking takes no token ids"


def test_a_ranking_is_one_job_whose_documents_share_the_query(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, worker = on_sqlite
    groups: list[GroupWork] = []

    def note(group: GroupWork, chunk: ChunkWork) -> ScoredChunk:
        groups.append(group)
        return score_chunk(group, chunk)

    worker.score_chunk = note
    documents = [f"item {n}" for n in range(600)]
    assert len(rank(api, query=QUERY, documents=documents)["results"]) == 600
    assert len({group.prefix.tobytes() for group in groups}) == 1


def test_a_ranking_that_is_sent_again_with_its_key_is_scored_once(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, worker = on_sqlite
    scored = []

    def count(group: GroupWork, chunk: ChunkWork) -> ScoredChunk:
        scored.append(chunk.id)
        return score_chunk(group, chunk)

    worker.score_chunk = count
    headers = {"Idempotency-Key": "once"}
    first = rank(api, headers=headers, **BODY)
    again = api.client.post("/v1/rerank", json=BODY, headers=headers)
    assert again.json() == first
    assert again.headers["idempotency-replayed"] == "true"
    assert len(scored) == 1
    other = api.client.post("/v1/rerank", json=BODY | {"top_n": 1}, headers=headers)
    assert other.json()["error"]["code"] == "idempotency_key_reused"


def test_a_ranking_that_is_sent_again_has_the_formula_that_it_was_sent_with(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    """Even if the template has another one by then."""
    path, found = tmp_path / "own.toml", []
    for formula in ("softmax(0)", "sigmoid(difference(1, 0))"):
        path.write_text(f'query = "{{query}}"\nitem = " {{item}}"\nlabels = [" yes", " no"]\nrelevance = "{formula}"\n')
        with running_api(model.directory, sqlite_url, tmp_path, template=str(path)) as (api, _):
            found.append(rank(api, headers={"Idempotency-Key": "once"}, **BODY))
            anew = rank(api, **BODY)
    assert found[1] == found[0]
    assert anew["results"] != found[0]["results"]


def test_a_ranking_that_is_out_of_time_gives_its_job_up(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, worker = on_sqlite
    worker.gate.clear()
    response = api.client.post("/v1/rerank", json=BODY | {"timeout": 0.2})
    assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
    job = api.client.get(response.headers["location"]).json()
    assert job["status"] in ("cancelled", "expired")


def test_labels_without_any_probability_give_a_relevance_of_zero(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, worker = on_sqlite

    def impossible(group: GroupWork, chunk: ChunkWork) -> ScoredChunk:
        nothing = np.full((len(chunk.rows), 2), -np.inf, np.float32)
        return ScoredChunk(chunk.id, LabelScores(nothing, nothing), 0)

    worker.score_chunk = impossible
    results = rank(api, **BODY)["results"]
    assert [result["relevance_score"] for result in results] == [0.0] * 5
    assert [result["index"] for result in results] == [0, 1, 2, 3, 4]


def test_kept_documents_count_in_the_budget_while_the_ranking_waits(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    with running_api(model.directory, sqlite_url, tmp_path) as (api, worker):
        assert worker is not None
        worker.gate.clear()
        budget = api.budget
        answers: list[httpx2.Response] = []

        def call(**body: Any) -> threading.Thread:
            thread = threading.Thread(target=lambda: answers.append(api.client.post("/v1/rerank", json=BODY | body)))
            thread.start()
            eventually(lambda: len(api.app.state.service.waiters.job_ids) == len(threads) + 1, "the ranking waits")
            return thread

        threads: list[threading.Thread] = []
        threads.append(call(return_documents=False))
        assert budget.held_bytes.used.total == 0
        threads.append(call())
        assert budget.held_bytes.used.total > 0
        worker.gate.set()
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200, 200]
        assert budget.held_bytes.used.total == 0
