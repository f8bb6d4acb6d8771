"""A request that is repeated with its Idempotency-Key does its work once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.serving import RunningApi, StandInWorker
from tests.databases import ON_BOTH, quick_on

Fresh = tuple[RunningApi, StandInWorker]

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70]}
KEY = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}


@ON_BOTH
def test_repeating_a_submission_with_its_key_returns_the_same_job(fresh: Fresh) -> None:
    api, _ = fresh
    first = api.client.post("/v1/jobs", json=BODY, headers=KEY)
    assert "idempotency-replayed" not in first.headers
    api.wait(first.json()["id"])
    again = api.client.post("/v1/jobs", json=BODY, headers=KEY)
    assert again.status_code == 202
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert (again.json()["id"], again.json()["status"]) == (first.json()["id"], "succeeded")
    assert len(api.client.get("/v1/jobs").json()["data"]) == 1


def test_a_repeated_call_is_scored_once_and_gets_the_same_answer(fresh: Fresh) -> None:
    api, _ = fresh
    first = api.client.post("/v1/score", json=BODY, headers=KEY)
    again = api.client.post("/v1/score", json=BODY, headers=KEY)
    assert first.status_code == again.status_code == 200
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == first.json()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/jobs", json.dumps(BODY | {"label_token_ids": [71]})),
        ("/v1/jobs", json.dumps(BODY) + " "),
        ("/v1/score", json.dumps(BODY)),
    ],
    ids=["another label", "another byte", "another route"],
)
def test_a_key_with_a_different_request_is_refused(fresh: Fresh, path: str, content: str) -> None:
    api, _ = fresh
    headers = KEY | {"content-type": "application/json"}
    first = api.client.post("/v1/jobs", content=json.dumps(BODY), headers=headers)
    other = api.client.post(path, content=content, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert api.client.get("/v1/jobs").json()["data"][0]["id"] == first.json()["id"]


@quick_on("postgres")
def test_fifty_concurrent_requests_with_one_key_make_one_job(fresh: Fresh) -> None:
    api, _ = fresh
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: api.client.post("/v1/jobs", json=BODY, headers=KEY), range(50)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1


def test_a_refused_body_does_not_use_up_its_key(fresh: Fresh) -> None:
    api, _ = fresh
    assert api.client.post("/v1/jobs", json=BODY | {"query": ""}, headers=KEY).status_code == 400
    assert api.client.post("/v1/jobs", json=BODY, headers=KEY).status_code == 202


def test_every_submission_without_a_key_is_a_new_job(fresh: Fresh) -> None:
    api, _ = fresh
    assert api.submit(**BODY)["id"] != api.submit(**BODY)["id"]
