"""Likelihoods: in calls, in jobs however they arrive and are read, and in files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

from jobs.queue import read as reading
from tests.api import tiny_model
from tests.api.batches.running import openai_of, read, run
from tests.api.events.event_streams import following
from tests.api.serving import Json, RunningApi, StandInWorker
from tests.api.tiny_model import TinyModel

QUERY = "The capital of"
ITEMS = [" France is Paris", "", " Japan is", "x"]
BODY: Json = {"query": QUERY, "items": ITEMS}
ALL: Json = BODY | {"return_token_logprobs": True, "return_tokens": True}
COLUMNS = ("logprob", "num_tokens", "is_greedy", "token_logprobs", "tokens")


def check(answer: Json, model: TinyModel) -> None:
    """Compare an answer that shows everything with the made-up model."""
    before = model.encode(QUERY)
    for n, item in enumerate(ITEMS):
        targets = model.encode(QUERY + item)[len(before) :]
        wanted = tiny_model.target_logprobs(before, targets)
        assert answer["tokens"][n] == targets
        assert answer["num_tokens"][n] == len(targets)
        assert_allclose(answer["token_logprobs"][n], wanted, rtol=1e-6)
        assert answer["logprob"][n] == pytest.approx(wanted.sum(dtype=np.float64), rel=1e-6)
        assert answer["is_greedy"][n] is tiny_model.is_greedy(before, targets)


def likelihood(api: RunningApi, **body: object) -> Json:
    response = api.client.post("/v1/likelihood", json=body)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def test_an_item_has_the_likelihood_of_its_own_tokens(api: RunningApi, model: TinyModel) -> None:
    answer = likelihood(api, **ALL)
    check(answer, model)
    assert answer["object"] == "likelihood"
    assert answer["usage"]["prompt_tokens"] == sum(len(model.encode(QUERY + item)) for item in ITEMS)
    assert likelihood(api, **BODY).keys() == answer.keys() - {"token_logprobs", "tokens"}
    assert likelihood(api, query=QUERY, items=[])["logprob"] == []


def test_the_most_probable_tokens_are_greedy(api: RunningApi) -> None:
    for query in ([5, token] for token in range(300)):
        first = int(tiny_model.logits(query).argmax())
        second = int(tiny_model.logits([*query, first]).argmax())
        if max(first, second) < 390:  # the model has logits for ids that are no tokens, too
            break
    answer = likelihood(api, query=query, items=[[first, second], [first, (second + 1) % 390], [first], []])
    assert answer["is_greedy"] == [True, False, True, True]


def test_a_job_gives_the_same_however_it_is_sent_and_read(
    on_sqlite: tuple[RunningApi, StandInWorker], model: TinyModel
) -> None:
    api, _ = on_sqlite
    wanted = likelihood(api, **ALL)
    head = {name: value for name, value in ALL.items() if name != "items"} | {"kind": "likelihood"}
    content = b"".join(json.dumps(line).encode() + b"\n" for line in [head, *ITEMS])
    sent = api.client.post("/v1/jobs", content=content, headers={"Content-Type": "application/x-ndjson"})
    assert sent.status_code == 202, sent.text
    for job_id in (api.submit(**ALL, kind="likelihood")["id"], sent.json()["id"]):
        job = api.wait(job_id)
        check(job["result"], model)
        assert job["kind"] == "likelihood"
        assert {name: job["result"][name] for name in COLUMNS} == {name: wanted[name] for name in COLUMNS}
        assert job["usage"] == wanted["usage"]
        rows = [{"index": n, **{name: wanted[name][n] for name in COLUMNS}} for n in range(len(ITEMS))]
        for offset, limit in ((0, 4), (1, 2), (3, 5)):
            page = api.client.get(job["urls"]["scores"], params={"offset": offset, "limit": limit}).json()
            assert page["data"] == rows[offset : offset + limit]
        lines = api.client.get(job["urls"]["scores"], headers={"Accept": "application/x-ndjson"}).text.splitlines()
        assert [json.loads(line) for line in lines] == rows
        shown = api.client.get(f"/v1/jobs/{job_id}/items", params={"index": [2, 0]}).json()
        assert [item["text"] for item in shown["data"]] == [ITEMS[2], ITEMS[0]]
        assert shown["labels"] == []


@pytest.mark.parametrize(("body", "bound"), [(ALL, "PAGE_TOKENS"), (BODY, "HIDDEN_TOKENS")])
def test_a_page_is_shorter_where_the_tokens_of_each_item_are_many(
    on_sqlite: tuple[RunningApi, StandInWorker], monkeypatch: pytest.MonkeyPatch, body: Json, bound: str
) -> None:
    api, _ = on_sqlite
    monkeypatch.setattr(reading, bound, 12)
    job = api.wait(api.submit(**body, kind="likelihood")["id"])
    assert "result" not in job
    page = api.client.get(job["urls"]["scores"], params={"limit": 4}).json()
    assert 0 < len(page["data"]) < len(ITEMS)
    assert page["has_more"]
    assert page["next_offset"] == len(page["data"])
    lines = api.client.get(job["urls"]["scores"], headers={"Accept": "application/x-ndjson"}).text.splitlines()
    assert [json.loads(line)["index"] for line in lines] == [0, 1, 2, 3]


def test_events_hold_the_likelihoods(
    on_sqlite: tuple[RunningApi, StandInWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, _ = on_sqlite
    monkeypatch.setattr("api.events.job_progress.PART_VALUES", 9)
    job = api.wait(api.submit(**ALL, kind="likelihood")["id"])
    with following(api, job["id"], scores=True) as events:
        pages = [event.data for event in events if event.name == "scores"]
    assert len(pages) > 1
    lines = [line for page in pages for line in page["data"]]
    assert [page["next_offset"] for page in pages] == [*(page["data"][0]["index"] for page in pages[1:]), None]
    assert [line["index"] for line in lines] == [0, 1, 2, 3]
    assert [line["logprob"] for line in lines] == job["result"]["logprob"]


def test_a_call_that_is_repeated_by_its_key_gives_the_same(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, _ = on_sqlite
    headers = {"Idempotency-Key": "once"}
    first, second = (api.client.post("/v1/likelihood", json=ALL, headers=headers).json() for _ in range(2))
    assert first == second
    other = api.client.post("/v1/score", json=ALL | {"label_token_ids": [5]}, headers=headers)
    assert other.json()["error"]["code"] in ("idempotency_key_reused", "unsupported_parameter")


def test_a_dry_run_counts_the_tokens(api: RunningApi, model: TinyModel) -> None:
    dry = api.client.post("/v1/jobs", json=BODY | {"kind": "likelihood", "dry_run": True}).json()
    assert dry["usage"]["prompt_tokens"] == sum(len(model.encode(QUERY + item)) for item in ITEMS)
    assert dry["work"] > 0


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"query": ""}, "empty_query", "query"),
        ({"query": None}, "missing_query", "query"),
        ({"items": None}, "missing_items", "items"),
        ({"items": [[1]]}, "mixed_input_types", "items[0]"),
        ({"labels": [" a"]}, "unsupported_parameter", "labels"),
        ({"label_token_ids": [1]}, "unsupported_parameter", "label_token_ids"),
        ({"item_first": True}, "unsupported_parameter", "item_first"),
        ({"template": "yes-no"}, "unsupported_parameter", "template"),
        ({"return_tokens": 1}, "invalid_request", "return_tokens"),
        ({"items": ["word " * 600]}, "context_length_exceeded", "items[0]"),
    ],
)
def test_what_can_not_be_done_is_refused(api: RunningApi, fields: Json, code: str, param: str) -> None:
    for path, more in (("/v1/likelihood", {}), ("/v1/jobs", {"kind": "likelihood"})):
        response = api.client.post(path, json=BODY | fields | more)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, code, param)


def test_a_job_has_a_known_kind(api: RunningApi) -> None:
    for kind in ("other", 7):
        error = api.client.post("/v1/jobs", json=BODY | {"kind": kind}).json()["error"]
        assert (error["code"], error["param"]) == ("invalid_request", "kind")


def test_lines_of_a_file_are_answered_as_alone(api: RunningApi) -> None:
    client = openai_of(api)
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/likelihood", "body": ALL},
        {"custom_id": "b", "method": "POST", "url": "/v1/likelihood", "body": {"query": ""}},
        {"custom_id": "c", "method": "POST", "url": "/v1/score", "body": BODY},
    ]
    batch = run(client, lines, "/v1/likelihood")
    [output] = read(client, batch.output_file_id)
    wanted = likelihood(api, **ALL)
    assert {name: output["response"]["body"][name] for name in COLUMNS} == {name: wanted[name] for name in COLUMNS}
    assert {one["custom_id"] for one in read(client, batch.error_file_id)} == {"b", "c"}
