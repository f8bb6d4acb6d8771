"""Labels for each item, and temperatures: in calls, in jobs, in pages and as JSON lines."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from api.answers.presentation import ScoredJob, encode_scoring
from tests.api import tiny_model
from tests.api.serving import RunningApi, StandInWorker, running_api
from tests.api.tiny_model import TinyModel

ITEMS = [" France is", "", " Japan is Tokyo"]
LABELS = [[70, 71], [72], [71, 70, 75, 71]]
BODY: dict[str, Any] = {"query": "The capital of", "items": ITEMS, "label_token_ids": LABELS}


def expected(model: TinyModel) -> list[list[float]]:
    return [
        model.text_scores("The capital of", [item], labels)[0].tolist()
        for item, labels in zip(ITEMS, LABELS, strict=True)
    ]


def close(found: list[list[float]], wanted: list[list[float]]) -> None:
    assert [len(row) for row in found] == [len(row) for row in wanted]
    for row, other in zip(found, wanted, strict=True):
        assert_allclose(row, other, rtol=1e-6)


def test_a_call_gives_each_item_the_scores_of_its_labels(api: RunningApi, model: TinyModel) -> None:
    answer = api.score(**BODY, return_logprobs=True, return_logits=True)
    wanted = expected(model)
    close(answer["scores"], wanted)
    for name in ("logprobs", "logits"):
        assert [len(row) for row in answer[name]] == [2, 1, 4]
    assert_allclose(answer["label_mass"], [sum(wanted[0]), wanted[1][0], sum(wanted[2][:3])], rtol=1e-6)


def test_texts_give_each_item_the_scores_of_its_labels(api: RunningApi, model: TinyModel) -> None:
    texts = [["F", "G"], ["H"], ["G", "F", "K", "G"]]
    ids = [[model.encode(text)[0] for text in of_item] for of_item in texts]
    answers = [
        api.score(**BODY | labels) for labels in ({"label_token_ids": ids}, {"label_token_ids": None, "labels": texts})
    ]
    assert answers[0]["scores"] == answers[1]["scores"]
    assert [len(row) for row in answers[1]["scores"]] == [2, 1, 4]
    job = api.wait(api.submit(**BODY | {"label_token_ids": None, "labels": texts})["id"])
    assert job["result"]["scores"] == answers[0]["scores"]


def test_a_job_gives_the_same_however_it_is_read(on_sqlite: tuple[RunningApi, StandInWorker], model: TinyModel) -> None:
    api, _ = on_sqlite
    job = api.wait(api.submit(**BODY)["id"])
    wanted = expected(model)
    close(job["result"]["scores"], wanted)
    for offset, limit in ((0, 3), (1, 1), (1, 2), (2, 5)):
        page = api.client.get(job["urls"]["scores"], params={"offset": offset, "limit": limit}).json()["data"]
        assert [line["index"] for line in page] == list(range(offset, min(offset + limit, 3)))
        close([line["scores"] for line in page], wanted[offset : offset + limit])
        assert_allclose([line["label_mass"] for line in page], job["result"]["label_mass"][offset : offset + limit])
    lines = api.client.get(job["urls"]["scores"], headers={"Accept": "application/x-ndjson"}).text.splitlines()
    close([json.loads(line)["scores"] for line in lines], wanted)
    assert api.client.get("/v1/jobs").json()["data"][0]["id"] == job["id"]


def test_a_call_that_is_repeated_by_its_key_gives_the_same(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, _ = on_sqlite
    headers = {"Idempotency-Key": "once"}
    first, second = (api.client.post("/v1/score", json=BODY, headers=headers).json() for _ in range(2))
    assert first == second


def test_a_softmax_is_taken_over_the_labels_of_an_item(api: RunningApi, model: TinyModel) -> None:
    answer = api.score(**BODY, apply_softmax=True, temperature=2)
    wanted = [
        softmax(tiny_model.logits(model.encode("The capital of" + item))[labels].astype(float) / 2).tolist()
        for item, labels in zip(ITEMS, LABELS, strict=True)
    ]
    close(answer["scores"], wanted)
    close([[mass] for mass in answer["label_mass"]], [[mass] for mass in api.score(**BODY)["label_mass"]])


def test_a_temperature_is_kept_with_a_job(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, _ = on_sqlite
    body = BODY | {"label_token_ids": [70, 71], "apply_softmax": True}
    warm = api.wait(api.submit(**body, temperature=3)["id"])["result"]["scores"]
    assert warm == api.score(**body, temperature=3.0)["scores"]
    cold = api.score(**body)["scores"]
    assert cold == api.score(**body, temperature=1)["scores"]
    for hot, plain in zip(warm, cold, strict=True):
        assert max(hot) < max(plain)


@pytest.mark.parametrize("labels", [{"label_token_ids": [[70], [71]]}, {"labels": [["F"], ["G"]]}])
def test_labels_for_each_item_can_not_be_uploaded_line_by_line(api: RunningApi, labels: Any) -> None:
    lines = [{"query": "The capital of", **labels}, " a", " b"]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    response = api.client.post("/v1/jobs", content=content, headers={"Content-Type": "application/x-ndjson"})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_label_token_ids")
    assert "JSON lines" in error["message"]


def test_more_labels_than_allowed_over_all_items_are_refused(model: TinyModel, sqlite_url: str, tmp_path: Any) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, max_item_labels=6) as (api, _):
        response = api.client.post("/v1/jobs", json=BODY)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (413, "request_too_large", "label_token_ids")
        assert "several jobs" in error["message"]
        fitting = BODY | {"label_token_ids": [[70, 71], [72], [71, 70, 75]]}
        assert api.client.post("/v1/jobs", json=fitting).status_code == 202


def test_a_long_text_among_the_labels_of_an_item_is_refused_at_its_place(api: RunningApi) -> None:
    body = BODY | {"label_token_ids": None, "labels": [["F"], ["G", "x" * 1_001], ["H"]]}
    error = api.client.post("/v1/score", json=body).json()["error"]
    assert (error["code"], error["param"]) == ("request_too_large", "labels[1][1]")


@pytest.mark.parametrize("items", [" France is", [" France is"]])
def test_one_item_may_have_its_labels_in_a_list(api: RunningApi, items: object) -> None:
    nested = api.score(query="The capital of", items=items, label_token_ids=[[70, 71]])
    assert nested["scores"] == api.score(query="The capital of", items=items, label_token_ids=[70, 71])["scores"]


@pytest.mark.parametrize(("labels", "where"), [(LABELS, "AnyIO worker thread"), ([70, 71], "Thread-")])
def test_the_scores_of_long_lists_of_labels_are_not_encoded_on_the_event_loop(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch, labels: Any, where: str
) -> None:
    """A notice brings the scores of few different labels, and the items may name each of them any number of times."""
    threads: list[str] = []

    def noted(scored: ScoredJob) -> bytes:
        threads.append(threading.current_thread().name)
        return encode_scoring(scored)

    monkeypatch.setattr("api.routes.score.encode_scoring", noted)
    api.score(**BODY | {"label_token_ids": labels})
    (thread,) = threads
    assert thread.startswith(where)
