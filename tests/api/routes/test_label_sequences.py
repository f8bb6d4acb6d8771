"""Labels of any number of tokens: in calls, in jobs however they arrive, in rankings and in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from tests.api import tiny_model
from tests.api.batches.running import openai_of, read, run
from tests.api.serving import Json, RunningApi, StandInWorker, running_api
from tests.api.tiny_model import TinyModel

QUERY = "The capital of"
ITEMS = [" France is", "", " Japan is"]
LABELS = [" Paris.", " Tokyo and item", " yes"]
BODY: Json = {"query": QUERY, "items": ITEMS, "labels": LABELS, "label_scoring": "sequence"}


def sums(model: TinyModel, query: str = QUERY, labels: list[str] = LABELS) -> np.ndarray:
    """Return the log-probability of each label behind each item, [N, M]."""
    found = []
    for item in ITEMS:
        before = model.encode(query + item)
        for label in labels:
            whole = model.encode(query + item + label)
            kept = len(before)
            while before[:kept] != whole[:kept]:
                kept -= 1
            found.append(tiny_model.target_logprobs(whole[:kept], whole[kept:]).sum(dtype=np.float64))
    return np.array(found).reshape(len(ITEMS), len(labels))


def test_scores_are_of_the_sums(api: RunningApi, model: TinyModel) -> None:
    wanted = sums(model)
    answer = api.score(**BODY, return_logprobs=True)
    assert_allclose(answer["logprobs"], wanted, rtol=1e-5)
    assert_allclose(answer["scores"], np.exp(wanted), rtol=1e-4)
    assert_allclose(answer["label_mass"], np.exp(wanted).sum(axis=1), rtol=1e-4)
    normalised = api.score(**BODY, apply_softmax=True, temperature=2)
    assert_allclose(normalised["scores"], softmax(wanted / 2, axis=1), rtol=1e-5)
    assert answer["usage"]["prompt_tokens"] == sum(
        len(model.encode(QUERY + item)) + sum(len(model.encode(label)) for label in LABELS) for item in ITEMS
    )


@pytest.mark.parametrize("normalization", ["tokens", "bytes"])
def test_a_sum_can_be_divided_and_the_share_of_the_labels_is_that_of_the_whole(
    normalization: str, api: RunningApi, model: TinyModel
) -> None:
    wanted = sums(model)
    divisors = [len(model.encode(label)) if normalization == "tokens" else len(label.encode()) for label in LABELS]
    answer = api.score(**BODY, label_normalization=normalization, return_logprobs=True)
    assert_allclose(answer["logprobs"], wanted / divisors, rtol=1e-5)
    assert_allclose(answer["scores"], np.exp(wanted / divisors), rtol=1e-5)
    assert_allclose(answer["label_mass"], np.exp(wanted).sum(axis=1), rtol=1e-4)


def test_a_label_that_is_named_twice_counts_once_in_the_share(api: RunningApi) -> None:
    twice = api.score(**BODY | {"labels": [*LABELS, LABELS[1]]})
    assert_allclose(twice["label_mass"], api.score(**BODY)["label_mass"], rtol=1e-6)


def test_a_label_of_one_token_has_the_scores_that_it_has_by_default(api: RunningApi) -> None:
    body = {"query": [5, 6], "items": [[7], []], "return_logprobs": True}
    by_default = api.score(**body, label_token_ids=[70, 71])
    sequences = api.score(**body, label_token_sequences=[[70], [71]], label_scoring="sequence")
    assert sequences["logprobs"] == by_default["logprobs"]


def test_a_job_gives_the_same_however_it_is_sent_and_read(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, _ = on_sqlite
    wanted = api.score(**BODY, label_normalization="tokens")
    body = BODY | {"label_normalization": "tokens"}
    head = {name: value for name, value in body.items() if name != "items"}
    content = b"".join(json.dumps(line).encode() + b"\n" for line in [head, *ITEMS])
    sent = api.client.post("/v1/jobs", content=content, headers={"Content-Type": "application/x-ndjson"})
    assert sent.status_code == 202, sent.text
    for job_id in (api.submit(**body)["id"], sent.json()["id"]):
        job = api.wait(job_id)
        assert job["kind"] == "score"
        assert job["usage"] == wanted["usage"]
        assert {name: job["result"][name] for name in ("scores", "label_mass")} == {
            name: wanted[name] for name in ("scores", "label_mass")
        }
        page = api.client.get(job["urls"]["scores"], params={"offset": 1, "limit": 1}).json()
        assert page["data"] == [{"index": 1, "scores": wanted["scores"][1], "label_mass": wanted["label_mass"][1]}]
        shown = api.client.get(f"/v1/jobs/{job_id}/items", params={"index": 2}).json()
        assert [label["text"] for label in shown["labels"]] == LABELS
        assert shown["data"][0]["text"] == ITEMS[2]


def test_a_dry_run_counts_the_labels(api: RunningApi) -> None:
    dry = api.client.post("/v1/jobs", json=BODY | {"dry_run": True}).json()
    shorter = api.client.post("/v1/jobs", json=BODY | {"dry_run": True, "labels": LABELS[2:]}).json()
    assert dry["usage"]["prompt_tokens"] > shorter["usage"]["prompt_tokens"]
    assert dry["work"] > shorter["work"]


YES = " yes it is, as everybody says who saw it"
TEMPLATE = f"""
query = "Query: {{query}}\\n"
item = "Item: {{item}}\\nAnswer:"
labels = ["{YES}", " no"]
relevance = "softmax(0)"
label_scoring = "sequence"
label_normalization = "tokens"
"""


def test_the_labels_of_a_template_may_have_several_tokens_if_it_says_so(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "phrases.toml"
    path.write_text(TEMPLATE)
    with running_api(model.directory, sqlite_url, tmp_path, template=str(path)) as (api, _):
        answer = api.score(query="what", items=["a", "b"], template="phrases", apply_softmax=True)
        assert_allclose(np.sum(answer["scores"], axis=1), 1)
        ranking = api.client.post("/v1/rerank", json={"query": "what", "documents": ["a", "b"]}).json()
        found = {one["index"]: one["relevance_score"] for one in ranking["results"]}
        assert_allclose([found[0], found[1]], [row[0] for row in answer["scores"]], rtol=1e-6)
        assert_allclose(answer["relevance"], [found[0], found[1]], rtol=1e-6)
        apart = api.score(
            query="Query: what\n",
            items=["Item: a\nAnswer:", "Item: b\nAnswer:"],
            labels=[YES, " no"],
            label_scoring="sequence",
            label_normalization="tokens",
            apply_softmax=True,
        )
        assert apart["scores"] == answer["scores"]
        own: dict[str, Any] = {"query": "what", "items": ["a"], "template": "phrases"}
        refused = api.client.post("/v1/score", json=own | {"labels": [YES]})
        assert refused.json()["error"]["code"] == "label_not_single_token"
        cut = api.client.post("/rerank", json={"query": "what", "texts": ["London " * 900], "truncate": True})
        assert cut.status_code == 200, cut.text


def test_lines_of_a_file_have_them_too(api: RunningApi) -> None:
    client = openai_of(api)
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/score", "body": BODY},
        {"custom_id": "b", "method": "POST", "url": "/v1/score", "body": BODY | {"labels": [""]}},
    ]
    batch = run(client, lines)
    [output] = read(client, batch.output_file_id)
    assert output["response"]["body"]["scores"] == api.score(**BODY)["scores"]
    [error] = read(client, batch.error_file_id)
    assert error["response"]["body"]["error"]["code"] == "invalid_label_token_ids"
