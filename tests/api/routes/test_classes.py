"""A model with classes is asked for these, and for nothing that needs probabilities of next tokens."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, log_expit, softmax

from scoreline.client import Client
from tests.api import tiny_model
from tests.api.serving import RunningApi, running_api
from tests.api.tiny_model import TinyModel, make_classifier_directory

Serving = Callable[[str], RunningApi]

NAMES = ["news", "spam", "an offer"]
MODELS: dict[str, dict[str, Any]] = {
    "classes": {"id2label": {str(n): name for n, name in enumerate(NAMES)}},
    "tags": {"id2label": {str(n): name for n, name in enumerate(NAMES)}, "problem_type": "multi_label_classification"},
    "relevance": {"num_labels": 1},
    "reward": {"num_labels": 1, "problem_type": "regression"},
}
QUERY, ITEMS = "The capital of", [" France is", " Japan", ""]
BODY: dict[str, Any] = {"query": QUERY, "items": ITEMS}
ONE_TOKEN = {"prompt": "a", "max_tokens": 1, "temperature": 0}
PROMPT = "Query: {}\nDocument: {}\nQuestion: Is the document relevant to the query? Answer yes or no.\nAnswer:"


@pytest.fixture(scope="module")
def serving(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server with a worker for each of the models, started when it is first needed."""
    with ExitStack() as servers:

        @cache
        def served(name: str) -> RunningApi:
            folder = tmp_path_factory.mktemp(name)
            directory = make_classifier_directory(folder / "model", **MODELS[name])
            database = Path(shutil.copy(sqlite_template, folder / "scoreline.db"))
            api, _ = servers.enter_context(running_api(directory, f"sqlite:///{database}", folder))
            return api

        yield served


def outputs(model: TinyModel, numbers: list[int], texts: list[str] | None = None) -> np.ndarray:
    texts = [QUERY + item for item in ITEMS] if texts is None else texts
    return np.stack([tiny_model.logits(model.encode(text))[numbers] for text in texts]).astype(float)


def test_without_labels_all_classes_are_scored_and_each_has_its_share(serving: Serving, model: TinyModel) -> None:
    answer = serving("classes").score(**BODY, return_logprobs=True, return_logits=True)
    sequences = [model.encode(QUERY + item) for item in ITEMS]
    np.testing.assert_allclose(answer["scores"], model.scores(sequences, [0, 1, 2]), rtol=1e-6)
    np.testing.assert_allclose(answer["logits"], outputs(model, [0, 1, 2]), rtol=1e-6)
    assert "label_mass" not in answer
    assert answer["warnings"] == []


def test_some_classes_are_scored_in_any_order_and_for_each_item(serving: Serving, model: TinyModel) -> None:
    api = serving("classes")
    labels = ["an offer", "news"]
    some = api.score(**BODY, labels=labels, apply_softmax=True)
    np.testing.assert_allclose(some["scores"], softmax(outputs(model, [2, 0]), axis=1), rtol=1e-6)
    each = api.score(**BODY, labels=[["spam"], ["an offer", "spam"], ["news"]], return_logits=True)
    wanted = [[1], [2, 1], [0]]
    for row, numbers, found in zip(outputs(model, [0, 1, 2]), wanted, each["logits"], strict=True):
        np.testing.assert_allclose(found, row[numbers], rtol=1e-6)
    job = api.wait(api.submit(**BODY, labels=labels)["id"])
    assert (job["status"], job["label_scoring"]) == ("succeeded", "class")
    shown = api.client.get(f"/v1/jobs/{job['id']}/items").json()["labels"]
    assert [label["text"] for label in shown] == labels


def test_many_items_give_no_warnings_about_tokens(serving: Serving) -> None:
    items = [f" item {n}" for n in range(150)]
    assert serving("classes").score(query=QUERY, items=items, labels=["spam"])["warnings"] == []


def test_independent_classes_are_scored_each_by_itself(serving: Serving, model: TinyModel) -> None:
    answer = serving("tags").score(**BODY, return_logprobs=True)
    np.testing.assert_allclose(answer["scores"], expit(outputs(model, [0, 1, 2])), rtol=1e-6)
    np.testing.assert_allclose(answer["logprobs"], log_expit(outputs(model, [0, 1, 2])), rtol=1e-5)
    reward = serving("reward").score(**BODY)
    np.testing.assert_allclose(reward["scores"], outputs(model, [0]), rtol=1e-6)


def test_the_model_tells_its_classes(serving: Serving) -> None:
    api = serving("tags")
    (served,) = api.client.get("/v1/models").json()["data"]
    assert served["classes"] == {"names": NAMES, "activation": "sigmoid"}
    assert (served["template"], served["templates"]) == (None, [])
    with Client(str(api.client.base_url)) as client:
        (found,) = client.models()
    assert found.classes == tuple(NAMES)
    with Client(str(serving("reward").client.base_url)) as client:
        (found,) = client.models()
    assert {template.relevance for template in found.templates} == {"logit(0)"}


@pytest.mark.parametrize(("name", "formula"), [("relevance", expit), ("reward", np.asarray)])
def test_documents_are_ranked_by_a_single_output_in_the_wording_of_a_template(
    name: str, formula: Callable[[Any], Any], serving: Serving, model: TinyModel
) -> None:
    api, documents = serving(name), ["London", "Paris is", ""]
    body = {"query": "Where?", "documents": documents, "template": "yes-no"}
    answer = api.client.post("/v1/rerank", json=body).json()
    found = {result["index"]: result["relevance_score"] for result in answer["results"]}
    raw = outputs(model, [0], [PROMPT.format("Where?", document) for document in documents])[:, 0]
    np.testing.assert_allclose([found[n] for n in range(3)], formula(raw), rtol=1e-6)
    assert all("label_mass" not in result for result in answer["results"])
    assert answer["warnings"] == []
    with Client(str(api.client.base_url)) as client:
        ranking = client.rerank("Where?", documents, template="yes-no")
    assert list(ranking.to_pandas().columns) == ["index", "relevance_score"]
    np.testing.assert_allclose([one.relevance_score for one in ranking.results], sorted(formula(raw))[::-1], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "path", "body", "param", "message"),
    [
        ("classes", "/v1/score", BODY | {"label_token_ids": [1]}, "label_token_ids", "is about tokens"),
        ("classes", "/v1/score", BODY | {"label_scoring": "sequence"}, "label_scoring", "is about tokens"),
        (
            "classes",
            "/v1/score",
            BODY | {"labels": ["spam", "ham"]},
            "labels[1]",
            "'ham'; it has 'news', 'spam', 'an offer'",
        ),
        ("classes", "/v1/score", BODY | {"labels": [["spam"], ["x"], ["news"]]}, "labels[1][0]", "no class 'x'"),
        ("classes", "/v1/score", BODY | {"template": "yes-no"}, "template", "there are none"),
        ("tags", "/v1/score", BODY | {"apply_softmax": True}, "apply_softmax", "independent"),
        ("reward", "/v1/score", BODY | {"return_logprobs": True}, "return_logprobs", "needs probabilities"),
        ("classes", "/v1/likelihood", BODY, None, "gives no probabilities of tokens"),
        (
            "classes",
            "/v1/completions",
            ONE_TOKEN,
            None,
            "gives no probabilities of tokens",
        ),
        ("classes", "/v1/rerank", {"query": "a", "documents": ["b"]}, "template", "no template is known to suit"),
        ("reward", "/v1/rerank", {"query": "a", "documents": ["b"]}, "template", "no template is known to suit"),
    ],
)
def test_what_such_a_model_can_not_answer_is_refused(
    name: str, path: str, body: dict[str, Any], param: str | None, message: str, serving: Serving
) -> None:
    answer = serving(name).client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def test_decisions_are_refused_in_words_of_their_own_interface(serving: Serving) -> None:
    questions = {"great": {"type": "noul", "instructions": "Is it great?"}}
    answer = serving("classes").client.post("/v1/systemone", json={"state": "x", "questions": questions})
    assert answer.status_code == 400, answer.text
    assert "gives no probabilities of tokens" in answer.text
