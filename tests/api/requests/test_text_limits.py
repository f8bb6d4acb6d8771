"""Texts that are too long are refused with little work and short answers, and each refusal is counted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import RunningApi, running_api
from tests.api.tiny_model import TinyModel

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France", " Japan"], "label_token_ids": [5]}


@pytest.fixture(scope="module")
def api(model: TinyModel, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    """A server with small limits."""
    folder = tmp_path_factory.mktemp("limits")
    path = folder / "scoreline.db"
    shutil.copy(sqlite_template, path)
    limits: dict[str, Any] = {
        "max_query_characters": 50,
        "max_item_characters": 60,
        "max_label_characters": 70,
        "max_tokenize_characters": 80,
        "max_tokens_per_call": 100,
        "max_tokens_per_job": 200,
        "max_stored_tokens_per_job": 90,
        "max_stored_tokens_per_upload": 95,
        "max_repeated_characters_per_job": 100,
        "max_repeated_characters_per_upload": 120,
    }
    with running_api(model.directory, f"sqlite:///{path}", folder, **limits) as (api, _):
        yield api


def refusals(api: RunningApi, limit: str) -> float:
    """Return how many requests a limit has refused so far."""
    name = f'scoreline_refused_requests_total{{limit="{limit}"}} '
    lines = api.client.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.mark.parametrize(
    ("path", "body", "param", "limit"),
    [
        ("/v1/score", BODY | {"query": "x" * 51}, "query", "max_query_characters"),
        ("/v1/jobs", BODY | {"items": ["a", "x" * 61]}, "items[1]", "max_item_characters"),
        ("/v1/score", BODY | {"label_token_ids": None, "labels": ["x" * 71]}, "labels[0]", "max_label_characters"),
        ("/v1/tokenize", {"text": "x" * 81}, "text", "max_tokenize_characters"),
        ("/v1/score", BODY | {"query": [1] * 30, "items": [[1]] * 4}, "items", "max_tokens_per_call"),
        ("/v1/jobs", BODY | {"query": [1] * 30, "items": [[1]] * 7}, "items", "max_tokens_per_job"),
        (
            "/v1/jobs",
            BODY | {"query": [1] * 30, "items": [[]] * 4, "item_first": True},
            "items",
            "max_stored_tokens_per_job",
        ),
        ("/v1/jobs", BODY | {"query": "x" * 30, "items": [""] * 4}, "items", "max_repeated_characters_per_job"),
        ("/v1/score", BODY | {"query_template": "x" * 51 + "{query}"}, "query_template", "max_query_characters"),
        ("/v1/jobs", BODY | {"item_template": "{item}" + "x" * 51}, "query_template", "max_query_characters"),
        (
            "/v1/jobs",
            BODY | {"item_template": "{item}" + "x" * 40, "items": [""] * 3},
            "items",
            "max_repeated_characters_per_job",
        ),
        ("/v1/rerank", {"query": "x" * 51, "documents": ["a"]}, "query", "max_query_characters"),
        ("/v2/rerank", {"query": "x", "documents": ["a", "x" * 61]}, "documents[1]", "max_item_characters"),
        ("/rerank", {"query": "x", "documents": ["a"] * 1_001}, "documents", "max_items_per_call"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("max_") else "",
)
def test_a_request_past_a_limit_is_refused_by_name_and_counted(
    api: RunningApi, path: str, body: dict[str, Any], param: str, limit: str
) -> None:
    before = refusals(api, limit)
    response = api.client.post(path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (413, "request_too_large", param)
    assert len(response.content) < 500
    assert refusals(api, limit) == before + 1


@pytest.mark.parametrize(
    ("first", "item", "limit"),
    [
        ({"query": [1] * 20, "item_first": True}, [], "max_stored_tokens_per_upload"),
        ({"query": "x" * 30}, "", "max_repeated_characters_per_upload"),
        ({"query": [1] * 40}, [], "max_tokens_per_job"),
        ({"query": "a"}, "x" * 61, "max_item_characters"),
        ({"query": "x" * 51}, "a", "max_query_characters"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("max_") else "",
)
def test_an_upload_past_a_limit_is_refused_and_counted(
    api: RunningApi, first: dict[str, Any], item: Any, limit: str
) -> None:
    before = refusals(api, limit)
    lines = [{"label_token_ids": [5]} | first, *[item] * 6]
    content = "\n".join(map(json.dumps, lines)).encode()
    response = api.client.post("/v1/jobs", content=content, headers={"Content-Type": "application/x-ndjson"})
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    assert refusals(api, limit) == before + 1


def test_what_is_within_the_limits_is_scored(api: RunningApi) -> None:
    assert len(api.score(**BODY)["scores"]) == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/score", BODY | {"model": "m" * 300_000}),
        ("/v1/score", BODY | {"label_token_ids": None, "labels": ["é" * 70]}),
        ("/v1/jobs", BODY | {"priority": "x" * 300_000}),
        ("/v1/jobs", BODY | {"webhook": {"url": "https://example.com/" + "x" * 300_000}}),
        ("/v1/jobs", BODY | {"webhook": {"url": "https://example.com/", "events": ["x" * 300_000]}}),
        ("/v1/jobs", BODY | {"metadata": {"x" * 300_000: "a"}}),
        ("/v1/jobs", BODY | {"metadata": {"a": "x" * 300_000}}),
        ("/v1/score", BODY | {"query": {"x" * 300_000: 1}}),
    ],
    ids=["model", "label", "priority", "webhook url", "event", "metadata name", "metadata value", "query"],
)
def test_an_error_quotes_little_of_what_was_sent(api: RunningApi, path: str, body: dict[str, Any]) -> None:
    response = api.client.post(path, json=body)
    assert response.status_code in (400, 404)
    assert len(response.json()["error"]["message"]) < 700
    assert len(response.content) < 3_000


def test_warnings_quote_little_of_unknown_fields(api: RunningApi) -> None:
    answer = api.score(**BODY, **{f"{n}" + "x" * 3_000: 1 for n in range(50)})
    *warnings, _of_label_mass = answer["warnings"]
    assert len(warnings) == 11
    assert max(map(len, warnings)) < 120


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("X" * 9_000, "/v1/jobs", {}),
        ("GET", "/" + "x" * 9_000, {}),
        ("GET", "/v1/jobs/" + "x" * 9_000, {}),
        ("GET", "/v1/jobs?after=" + "x" * 9_000, {}),
        ("GET", "/v1/jobs?limit=" + "x" * 9_000, {}),
        ("GET", "/v1/jobs?" + "x" * 9_000 + "=1", {}),
        ("GET", "/v1/jobs?status=" + "x" * 9_000, {}),
        ("POST", "/v1/jobs", {"Idempotency-Key": "x" * 9_000}),
        ("POST", "/v1/jobs", {"Content-Type": "x/" + "x" * 9_000}),
        ("POST", "/v1/jobs", {"Content-Encoding": "x" * 9_000}),
        ("GET", "/v1/jobs", {"Prefer": "wait=" + "x" * 9_000}),
        ("GET", "/v1/jobs", {"Authorization": "Bearer " + "x" * 9_000}),
        ("GET", "/v1/jobs", {"Accept": "x" * 9_000, "X-Request-ID": "x" * 9_000}),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "-".join(value),
)
def test_no_answer_repeats_a_long_part_of_a_request(
    api: RunningApi, method: str, path: str, headers: dict[str, str]
) -> None:
    response = api.client.request(method, path, content=b"{}" if method == "POST" else None, headers=headers)
    assert response.status_code < 500
    assert len(response.content) < 2_000
    assert sum(len(value) for value in response.headers.values()) < 2_000


def test_the_error_for_a_key_of_another_request_quotes_the_beginning_of_the_key(api: RunningApi) -> None:
    key = {"Idempotency-Key": "k" * 255}
    api.submit(key, **BODY)
    response = api.client.post("/v1/jobs", json=BODY | {"items": ["a"]}, headers=key)
    assert response.status_code == 422
    assert "k" * 200 in response.json()["error"]["message"]
    assert "k" * 201 not in response.text
