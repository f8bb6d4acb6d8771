"""Unknown fields are ignored with a warning, and refused under ``Prefer: handling=strict``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.requests.headers.prefer import prefers_strict
from tests.api.serving import RunningApi

SCORE: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/score": SCORE,
    "/v1/jobs": SCORE,
    "/v1/rerank": {"query": "London", "documents": ["Paris"]},
    "/v1/tokenize": {"text": "a"},
}


@pytest.mark.parametrize("path", BODIES)
def test_an_unknown_field_is_refused_if_that_is_preferred(api: RunningApi, path: str) -> None:
    strict = {"Prefer": "handling=strict"}
    body = BODIES[path] | {"colour": "red"}
    assert api.client.post(path, json=body).status_code < 300
    response = api.client.post(path, json=body, headers=strict)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "unknown_parameter", "colour")
    assert response.headers["preference-applied"] == "handling=strict"
    fine = api.client.post(path, json=BODIES[path], headers=strict)
    assert fine.status_code < 300
    assert fine.headers["preference-applied"] == "handling=strict"


def test_an_unknown_field_of_a_batch_is_refused_too(api: RunningApi) -> None:
    body = {"input_file_id": "file_0", "endpoint": "/v1/score", "completion_window": "24h", "colour": "red"}
    strict = api.client.post("/v1/batches", json=body, headers={"Prefer": "handling=strict"})
    error = strict.json()["error"]
    assert (strict.status_code, error["code"], error["param"]) == (400, "unknown_parameter", "colour")
    assert api.client.post("/v1/batches", json=body).json()["error"]["code"] == "file_not_found"
    foreign = api.client.post("/v1/batches", json=body | {"output_expires_after": {"seconds": 5}}).json()["error"]
    assert (foreign["code"], foreign["param"]) == ("unsupported_parameter", "output_expires_after")


def test_an_unknown_field_of_a_webhook_is_refused_too(api: RunningApi) -> None:
    body = SCORE | {"webhook": {"url": "https://hooks.example.com/", "secret": "s"}}
    error = api.client.post("/v1/jobs", json=body, headers={"Prefer": "handling=strict"}).json()["error"]
    assert (error["code"], error["param"]) == ("unknown_parameter", "webhook.secret")


def test_an_unknown_field_of_an_upload_is_refused_too(api: RunningApi) -> None:
    first = {"query": "The capital of", "label_token_ids": [70], "colour": "red"}
    content = json.dumps(first).encode() + b'\n" France is"\n'
    headers = {"Content-Type": "application/x-ndjson", "Prefer": "handling=strict"}
    error = api.client.post("/v1/jobs", content=content, headers=headers).json()["error"]
    assert (error["code"], error["param"]) == ("unknown_parameter", "colour")
    del headers["Prefer"]
    accepted = api.client.post("/v1/jobs", content=content, headers=headers)
    assert accepted.json()["warnings"] == ['unknown field "colour" was ignored']


def test_a_long_name_is_quoted_only_in_part(api: RunningApi) -> None:
    body = SCORE | {"n" * 100_000: 1}
    response = api.client.post("/v1/score", json=body, headers={"Prefer": "handling=strict"})
    assert response.status_code == 400
    assert len(response.content) < 1_000


@pytest.mark.parametrize(
    ("headers", "strict"),
    [
        ([], False),
        (["handling=strict"], True),
        (['Handling = "Strict"; a=b'], True),
        (["wait=5, handling=strict"], True),
        (["wait=5", "handling=strict"], True),
        (["handling=lenient, handling=strict"], False),
        (["handling=strictly"], False),
        (["respond-async"], False),
    ],
)
def test_the_first_valid_preference_counts(headers: list[str], strict: bool) -> None:
    assert prefers_strict(headers) is strict
