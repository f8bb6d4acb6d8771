"""Calls, jobs and uploads take templates, and a deployment says at its start what is wrong with its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from scoring.templates.wording import TemplateError
from tests.api.serving import RunningApi, running_api
from tests.api.tiny_model import TinyModel

TEMPLATES: dict[str, Any] = {"query_template": "The answer is {query}.\n", "item_template": "item {item} and "}
ITEMS = ["a", "b {query}", ""]


def expected(model: TinyModel, labels: list[int]) -> np.ndarray:
    texts = [f"The answer is yes.\nitem {item} and " for item in ITEMS]
    return model.scores([model.encode(text) for text in texts], labels)


def test_a_call_a_job_and_an_upload_take_templates(api: RunningApi, model: TinyModel) -> None:
    body = {"query": "yes", "label_token_ids": [70, 71], **TEMPLATES}
    call = api.score(**body, items=ITEMS)
    assert_allclose(call["scores"], expected(model, [70, 71]), rtol=1e-6)
    job = api.wait(api.submit(**body, items=ITEMS)["id"])
    assert job["result"]["scores"] == call["scores"]
    lines = "".join(json.dumps(line) + "\n" for line in (body, *ITEMS))
    sent = api.client.post("/v1/jobs", content=lines, headers={"content-type": "application/x-ndjson"})
    assert api.wait(sent.json()["id"])["result"]["scores"] == call["scores"]


def test_the_share_of_the_labels_is_always_computed_for_templates(api: RunningApi, model: TinyModel) -> None:
    answer = api.score(query="yes", items=ITEMS, label_token_ids=[70, 71], apply_softmax=True, **TEMPLATES)
    assert_allclose(answer["label_mass"], expected(model, [70, 71]).sum(axis=1), rtol=1e-6)
    assert_allclose(np.sum(answer["scores"], axis=1), np.ones(3), rtol=1e-12)


def test_a_named_template_needs_no_labels(api: RunningApi, model: TinyModel) -> None:
    answer = api.score(query="Paris", items=["London"], template="demonstration")
    labels = [model.token(" yes"), model.token(" no")]
    sequence = model.encode("Query: Paris\nDocument: London\nRelevant:")
    assert_allclose(answer["scores"], model.scores([sequence], labels), rtol=1e-6)


def test_scores_by_the_labels_of_a_template_have_its_relevance(api: RunningApi) -> None:
    body: dict[str, Any] = {"query": "Paris", "items": ["London", "Berlin"], "template": "demonstration"}
    call = api.score(**body)
    by_softmax = api.score(**body, apply_softmax=True)
    assert_allclose(call["relevance"], np.array(by_softmax["scores"])[:, 0], rtol=1e-6)
    assert call["relevance"] == by_softmax["relevance"]
    ranked = api.client.post("/v1/rerank", json={"query": "Paris", "documents": body["items"]} | {
        "template": "demonstration"}).json()  # fmt: skip
    by_index = {result["index"]: result["relevance_score"] for result in ranked["results"]}
    assert call["relevance"] == [by_index[0], by_index[1]]
    job = api.wait(api.submit(**body)["id"])
    assert job["result"]["relevance"] == call["relevance"]
    lines = api.client.get(f"/v1/jobs/{job['id']}/scores").json()["data"]
    assert [line["relevance"] for line in lines] == call["relevance"]
    for others in ({"labels": [" no", " yes"]}, {"label_token_ids": [70, 71]}):
        assert "relevance" not in api.score(**body, **others)


def test_the_service_tells_of_its_templates(api: RunningApi) -> None:
    (model,) = api.client.get("/v1/models").json()["data"]
    templates = {template.pop("name"): template for template in model["templates"]}
    digest = templates["demonstration"].pop("digest")
    assert len(digest) == 32
    assert templates["demonstration"] == {"labels": [" yes", " no"], "relevance": "softmax(0)"}
    assert templates["mxbai-rerank-v2"]["relevance"] == "difference(1, 0)"


def test_a_template_can_be_named_with_its_digest_which_refuses_a_changed_one(api: RunningApi) -> None:
    body: dict[str, Any] = {"query": "Paris", "items": ["London"]}
    (model,) = api.client.get("/v1/models").json()["data"]
    (digest,) = (template["digest"] for template in model["templates"] if template["name"] == "demonstration")
    by_name = api.score(**body, template="demonstration")
    assert api.score(**body, template=f"demonstration@{digest}")["scores"] == by_name["scores"]
    for name, says in (
        ("demonstration@", f"was changed: its digest is {digest}, not ''"),
        ("demonstration@0123", f"was changed: its digest is {digest}, not '0123'"),
        (f"nothing@{digest}", "there is no template 'nothing'"),
        (digest, f"there is no template '{digest}'"),
    ):
        for path, texts in (("/v1/score", "items"), ("/v1/jobs", "items"), ("/v1/rerank", "documents")):
            response = api.client.post(path, json={"query": "Paris", texts: ["London"], "template": name})
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (400, "invalid_template", "template")
            assert says in error["message"]


def test_a_template_for_another_tokenizer_is_refused(api: RunningApi) -> None:
    response = api.client.post("/v1/score", json={"query": "a", "items": ["b"], "template": "qwen3-reranker"})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_template", "template")
    assert "<|im_start|>" in error["message"]


@pytest.mark.parametrize(
    ("template", "reason"), [("qwen3-reranker", "<|im_start|>"), ("none", "no template"), ("{}/own.toml", "positively")]
)
def test_a_deployment_whose_template_does_not_fit_does_not_start(
    model: TinyModel, sqlite_url: str, tmp_path: Path, template: str, reason: str
) -> None:
    own = 'query = "{query}"\nitem = "{item}"\nlabels = [" positively so"]\nrelevance = "logit(0)"\n'
    (tmp_path / "own.toml").write_text(own)
    with pytest.raises(TemplateError) as caught:
        RunningApi(model.directory, sqlite_url, tmp_path, template=template.format(tmp_path))
    assert reason in str(caught.value)


def test_a_file_of_the_deployment_can_be_named_by_requests(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('query = "saw {query}"\nitem = " in {item}"\nlabels = [" yes"]\nrelevance = "logit(0)"\n')
    with running_api(model.directory, sqlite_url, tmp_path, template=str(path)) as (api, _):
        answer = api.score(query="London", items=["England"], template="own")
    sequence = model.encode("saw London in England")
    assert_allclose(answer["scores"], model.scores([sequence], [model.token(" yes")]), rtol=1e-6)
