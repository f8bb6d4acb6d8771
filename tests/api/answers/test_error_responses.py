"""Error responses: each has its status, its code and the path of the error."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from api.answers.error_responses import STATUS
from jobs.store.database import Database
from scoring.error_codes import ErrorCode
from tests.api.serving import RunningApi, running_api
from tests.api.tiny_model import CONTEXT, TinyModel

GOOD: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [65, 66]}
TOKENS: dict[str, Any] = {"query": [65, 66], "items": [[67], [68, 69]], "label_token_ids": [65]}
LONG = "capital " * CONTEXT


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in GOOD.items() if key != name}


@dataclass(frozen=True)
class Case:
    """A request and its expected error."""

    name: str
    body: Any
    code: ErrorCode
    param: str | None = None
    says: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


E = ErrorCode
CASES = [
    Case("missing query", without("query"), E.MISSING_QUERY, "query"),
    Case("null query", GOOD | {"query": None}, E.MISSING_QUERY, "query"),
    Case("missing items", without("items"), E.MISSING_ITEMS, "items"),
    Case("null items", GOOD | {"items": None}, E.MISSING_ITEMS, "items"),
    Case("missing labels", without("label_token_ids"), E.MISSING_LABEL_TOKEN_IDS, "label_token_ids"),
    Case("null labels", GOOD | {"label_token_ids": None}, E.MISSING_LABEL_TOKEN_IDS, "label_token_ids"),
    Case("empty query text", GOOD | {"query": ""}, E.EMPTY_QUERY, "query"),
    Case("empty query tokens", TOKENS | {"query": []}, E.EMPTY_QUERY, "query"),
    Case("empty query, item first", GOOD | {"query": "", "item_first": True}, E.EMPTY_QUERY, "query"),
    Case("no labels", GOOD | {"label_token_ids": []}, E.EMPTY_LABEL_TOKEN_IDS, "label_token_ids"),
    Case("no text labels", without("label_token_ids") | {"labels": []}, E.EMPTY_LABEL_TOKEN_IDS, "labels"),
    Case("nested label", GOOD | {"label_token_ids": [1, [2, 3]]}, E.INVALID_LABEL_TOKEN_IDS, "label_token_ids[1]"),
    Case("text label id", GOOD | {"label_token_ids": ["65"]}, E.INVALID_LABEL_TOKEN_IDS, "label_token_ids[0]"),
    Case("float label", GOOD | {"label_token_ids": [2.0]}, E.INVALID_LABEL_TOKEN_IDS, "label_token_ids[0]"),
    Case("boolean label", GOOD | {"label_token_ids": [True]}, E.INVALID_LABEL_TOKEN_IDS, "label_token_ids[0]"),
    Case("257 labels", GOOD | {"label_token_ids": list(range(257))}, E.TOO_MANY_LABELS, "label_token_ids", "256"),
    Case("negative label", GOOD | {"label_token_ids": [1, -1]}, E.NEGATIVE_TOKEN_ID, "label_token_ids[1]"),
    Case("negative query id", TOKENS | {"query": [65, -5]}, E.NEGATIVE_TOKEN_ID, "query[1]"),
    Case("negative item id", TOKENS | {"items": [[65], [66, -1]]}, E.NEGATIVE_TOKEN_ID, "items[1][1]"),
    Case("label beyond vocabulary", GOOD | {"label_token_ids": [511]}, E.TOKEN_ID_EXCEEDS_VOCAB, "label_token_ids[0]"),
    Case("query id beyond vocabulary", TOKENS | {"query": [511]}, E.TOKEN_ID_EXCEEDS_VOCAB, "query[0]"),
    Case("item id beyond vocabulary", TOKENS | {"items": [[511]]}, E.TOKEN_ID_EXCEEDS_VOCAB, "items[0][0]"),
    Case("enormous id", TOKENS | {"items": [[10**30]]}, E.TOKEN_ID_EXCEEDS_VOCAB, "items[0][0]"),
    Case(
        "text label of several tokens",
        without("label_token_ids") | {"labels": [" Paris", "xylophone"]},
        E.LABEL_NOT_SINGLE_TOKEN,
        "labels[1]",
    ),
    Case("empty text label", without("label_token_ids") | {"labels": [""]}, E.LABEL_NOT_SINGLE_TOKEN, "labels[0]"),
    Case("both kinds of labels", GOOD | {"labels": [" Paris"]}, E.INVALID_REQUEST, "labels"),
    Case("text query, token items", GOOD | {"items": [[65]]}, E.MIXED_INPUT_TYPES, "items[0]"),
    Case("token query, text items", TOKENS | {"items": [" a"]}, E.MIXED_INPUT_TYPES, "items[0]"),
    Case("items of both kinds", GOOD | {"items": [" a", [65]]}, E.MIXED_INPUT_TYPES, "items[1]"),
    Case("sequence too long", GOOD | {"items": ["", LONG]}, E.CONTEXT_LENGTH_EXCEEDED, "items[1]", str(CONTEXT)),
    Case("query too long", GOOD | {"query": LONG, "items": [""]}, E.CONTEXT_LENGTH_EXCEEDED, "items[0]"),
    Case("not JSON", b'{"query": ', E.INVALID_JSON),
    Case("no body", b"", E.INVALID_JSON),
    Case("not UTF-8", b'{"query": "\xff"}', E.INVALID_JSON),
    Case("a list for a body", [GOOD], E.INVALID_REQUEST),
    Case("NaN", b'{"query": NaN}', E.INVALID_REQUEST),
    Case("infinity", b'{"query": -Infinity}', E.INVALID_REQUEST),
    Case("infinity in disguise", b'{"query": 1e999}', E.INVALID_REQUEST),
    Case("lone surrogate", b'{"query": "\\ud800", "items": [""], "label_token_ids": [1]}', E.INVALID_REQUEST, "query"),
    Case("deep nesting", b"[" * 100_000 + b"]" * 100_000, E.INVALID_REQUEST),
    Case("a number for a query", GOOD | {"query": 5}, E.INVALID_REQUEST, "query"),
    Case("an object for items", GOOD | {"items": {"a": 1}}, E.INVALID_REQUEST, "items"),
    Case("a number among items", GOOD | {"items": [" a", 5]}, E.INVALID_REQUEST, "items[1]"),
    Case("text for a flag", GOOD | {"apply_softmax": "yes"}, E.INVALID_REQUEST, "apply_softmax"),
    Case("a number for a model", GOOD | {"model": 5}, E.INVALID_REQUEST, "model"),
    Case("unknown model", GOOD | {"model": "gpt-17"}, E.MODEL_NOT_FOUND, "model", "gpt-17"),
    Case(
        "form data", b"query=a", E.UNSUPPORTED_MEDIA_TYPE, headers={"content-type": "application/x-www-form-urlencoded"}
    ),
    Case(
        "another charset", GOOD, E.UNSUPPORTED_MEDIA_TYPE, headers={"content-type": "application/json; charset=utf-16"}
    ),
    Case("brotli", GOOD, E.UNSUPPORTED_MEDIA_TYPE, headers={"content-encoding": "br"}),
    Case("no gzip", GOOD, E.INVALID_REQUEST, says="not valid gzip", headers={"content-encoding": "gzip"}),
    Case("bad key", GOOD, E.INVALID_REQUEST, "Idempotency-Key", headers={"idempotency-key": "k" * 256}),
    Case("empty key", GOOD, E.INVALID_REQUEST, "Idempotency-Key", headers={"idempotency-key": ""}),
]

CALL_CASES = [
    Case("negative timeout", GOOD | {"timeout": -1}, E.INVALID_REQUEST, "timeout"),
    Case("no timeout", GOOD | {"timeout": 0}, E.INVALID_REQUEST, "timeout"),
    Case("boolean timeout", GOOD | {"timeout": True}, E.INVALID_REQUEST, "timeout"),
    Case("endless timeout", GOOD | {"timeout": 601}, E.INVALID_REQUEST, "timeout", "600"),
    Case("unknown on_timeout", GOOD | {"on_timeout": "explode"}, E.INVALID_REQUEST, "on_timeout", "continue, cancel"),
    Case("too many items for a call", GOOD | {"items": [""] * 1001}, E.REQUEST_TOO_LARGE, "items", "/v1/jobs"),
]

JOB_CASES = [
    Case("webhook", GOOD | {"webhook": "https://example.org"}, E.INVALID_REQUEST, "webhook"),
    Case("webhook url", GOOD | {"webhook": {"url": "https://10.0.0.1"}}, E.WEBHOOK_URL_FORBIDDEN, "webhook.url"),
    Case("unknown priority", GOOD | {"priority": "urgent"}, E.INVALID_REQUEST, "priority", "interactive, normal, bulk"),
    Case("expired before it began", GOOD | {"expires_in": 0}, E.INVALID_REQUEST, "expires_in"),
    Case("text for expires_in", GOOD | {"expires_in": "1h"}, E.INVALID_REQUEST, "expires_in"),
    Case("metadata is no object", GOOD | {"metadata": ["a"]}, E.INVALID_REQUEST, "metadata"),
    Case("metadata holds a number", GOOD | {"metadata": {"run": 7}}, E.INVALID_REQUEST, "metadata.run"),
    Case("metadata holds NUL", GOOD | {"metadata": {"run": "a\0b"}}, E.INVALID_REQUEST, "metadata.run"),
    Case("metadata is long", GOOD | {"metadata": {"run": "a" * 513}}, E.INVALID_REQUEST, "metadata.run"),
    Case("much metadata", GOOD | {"metadata": {str(n): "" for n in range(17)}}, E.INVALID_REQUEST, "metadata"),
    Case("too many items for a job", GOOD | {"items": [""] * 100_001}, E.REQUEST_TOO_LARGE, "items", "100000"),
]

ROUTED = [("/v1/score", case) for case in CASES + CALL_CASES] + [("/v1/jobs", case) for case in CASES + JOB_CASES]


@pytest.mark.parametrize(("path", "case"), ROUTED, ids=[f"{path[4:]}: {case.name}" for path, case in ROUTED])
def test_an_invalid_body_is_answered_with_its_error_code_and_the_path_of_the_error(
    api: RunningApi, path: str, case: Case
) -> None:
    headers = {"content-type": "application/json"} | case.headers
    response = api.client.post(path, content=case.content, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (STATUS[case.code], case.code, case.param), error
    assert error["type"] == "invalid_request_error"
    assert case.says in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]


def test_a_refused_body_stores_no_job(api: RunningApi) -> None:
    before = api.client.get("/v1/jobs?limit=100").json()["data"]
    for path, case in ROUTED:
        api.client.post(path, content=case.content, headers={"content-type": "application/json"} | case.headers)
    assert api.client.get("/v1/jobs?limit=100").json()["data"] == before


def test_the_error_for_a_label_of_several_tokens_shows_its_pieces(api: RunningApi, model: TinyModel) -> None:
    error = api.client.post("/v1/score", json=without("label_token_ids") | {"labels": ["xyz"]}).json()["error"]
    assert len(model.encode("xyz")) == 3
    assert all(repr(piece) in error["message"] or f'"{piece}"' in error["message"] for piece in "xyz"), error


@pytest.mark.parametrize(
    ("method", "path", "code", "param"),
    [
        ("GET", "/v1/unknown", E.NOT_FOUND, None),
        ("GET", "/metrics/", E.NOT_FOUND, None),
        ("GET", "/docs/favicon.ico", E.NOT_FOUND, None),
        ("GET", "/v1/models/gpt-17", E.MODEL_NOT_FOUND, "model"),
        ("DELETE", "/v1/models/tiny", E.METHOD_NOT_ALLOWED, None),
        ("GET", "/v1/score", E.METHOD_NOT_ALLOWED, None),
        ("PUT", "/v1/jobs", E.METHOD_NOT_ALLOWED, None),
        ("PATCH", "/v1/jobs/job_1", E.METHOD_NOT_ALLOWED, None),
        ("GET", "/v1/jobs?limit=abc", E.INVALID_REQUEST, "limit"),
        ("GET", "/v1/jobs?limit=0", E.INVALID_REQUEST, "limit"),
        ("GET", "/v1/jobs?limit=101", E.INVALID_REQUEST, "limit"),
        ("GET", "/v1/jobs?status=sleeping", E.INVALID_REQUEST, "status"),
        ("GET", "/v1/jobs?after=nonsense", E.INVALID_REQUEST, "after"),
        ("GET", "/v1/jobs/job_1/scores?offset=-1", E.INVALID_REQUEST, "offset"),
        ("GET", "/v1/jobs/job_1/scores?offset=99999999999999999999", E.INVALID_REQUEST, "offset"),
        ("GET", "/v1/jobs/job_1/scores?limit=many", E.INVALID_REQUEST, "limit"),
        ("GET", "/v1/jobs/nonsense", E.JOB_NOT_FOUND, None),
        ("GET", "/v1/jobs/job_%00", E.JOB_NOT_FOUND, None),
        ("GET", "/v1/jobs/job_%F0%9F%8E%89", E.JOB_NOT_FOUND, None),
        ("GET", "/v1/jobs/job_01890000-0000-7000-8000-000000000000", E.JOB_NOT_FOUND, None),
        ("GET", "/v1/jobs/job_01890000-0000-7000-8000-000000000000/scores", E.JOB_NOT_FOUND, None),
        ("POST", "/v1/jobs/job_01890000-0000-7000-8000-000000000000/cancel", E.JOB_NOT_FOUND, None),
        ("DELETE", "/v1/jobs/job_01890000-0000-7000-8000-000000000000", E.JOB_NOT_FOUND, None),
    ],
)
def test_unknown_paths_methods_and_ids_are_answered_with_the_envelope(
    api: RunningApi, method: str, path: str, code: ErrorCode, param: str | None
) -> None:
    response = api.client.request(method, path)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (STATUS[code], code, param), error
    assert response.headers["x-request-id"]


def test_the_answer_to_a_wrong_method_lists_all_allowed_ones(api: RunningApi) -> None:
    response = api.client.put("/v1/jobs/job_1")
    assert response.headers["allow"] == "DELETE, GET, HEAD"
    assert api.client.delete("/v1/jobs").headers["allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize("text", [None, 5, ["a"]])
def test_tokenizing_a_value_that_is_no_text_is_refused(api: RunningApi, text: object) -> None:
    response = api.client.post("/v1/tokenize", json={"text": text})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
    assert response.json()["error"]["param"] == "text"


@pytest.mark.parametrize("chunked", [False, True])
def test_too_large_a_body_is_refused_with_and_without_a_declared_length(
    model: TinyModel, sqlite_url: str, tmp_path: Any, chunked: bool
) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, max_body_bytes=1000) as (api, _):
        large = json.dumps(GOOD | {"metadata": {"a": "b" * 2000}}).encode()
        content = iter([large[:500], large[500:]]) if chunked else large
        response = api.client.post("/v1/jobs", content=content, headers={"content-type": "application/json"})
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
        fitting = json.dumps(GOOD).encode().ljust(1000)
        response = api.client.post("/v1/jobs", content=fitting, headers={"content-type": "application/json"})
        assert response.status_code == 202


def test_the_error_for_a_call_with_too_many_tokens_points_to_jobs(
    model: TinyModel, sqlite_url: str, tmp_path: Any
) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, max_tokens_per_call=20) as (api, _):
        body = GOOD | {"items": [" France is"] * 20}
        error = api.client.post("/v1/score", json=body).json()["error"]
        assert error["code"] == "request_too_large"
        assert "/v1/jobs" in error["message"]
        assert api.client.post("/v1/jobs", json=body).status_code == 202


def test_the_delimiter_token_in_the_input_is_refused(model: TinyModel, sqlite_url: str, tmp_path: Any) -> None:
    delimiter = model.token(" Paris")
    settings = {"multi_item_scoring_delimiter": delimiter}
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **settings) as (api, _):
        for body, param in [
            (TOKENS | {"query": [65, delimiter]}, "query"),
            (TOKENS | {"items": [[65], [66, delimiter]]}, "items[1]"),
            (GOOD | {"query": "The capital is Paris"}, "query"),
            (GOOD | {"items": [" a", " b", " Paris"]}, "items[2]"),
        ]:
            response = api.client.post("/v1/score", json=body)
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (400, "delimiter_in_input"), error
            assert error["param"].startswith(param)


def test_without_a_live_worker_a_call_is_refused_at_once_and_a_job_is_accepted(
    model: TinyModel, sqlite_url: str, tmp_path: Any
) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False) as (api, _):
        response = api.client.post("/v1/score", json=GOOD)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "model_unavailable")
        assert response.json()["error"]["type"] == "server_error"
        assert int(response.headers["retry-after"]) > 0
        assert api.client.get("/v1/jobs").json()["data"] == []
        assert api.client.post("/v1/jobs", json=GOOD).status_code == 202
        assert api.score(**GOOD | {"items": []})["scores"] == []


def test_a_call_that_times_out_names_its_job_which_continues(model: TinyModel, store_url: str, tmp_path: Any) -> None:
    with running_api(model.directory, store_url, tmp_path) as (api, worker):
        assert worker is not None
        worker.gate.clear()
        response = api.client.post("/v1/score", json=GOOD | {"timeout": 0.05})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (504, "timeout")
        job_id = response.headers["location"].rpartition("/")[2]
        assert job_id in error["message"]
        assert error["job_id"] == job_id
        worker.gate.set()
        assert api.wait(job_id)["status"] == "succeeded"


def test_a_call_with_on_timeout_cancel_is_cancelled_when_it_times_out(on_sqlite: Any) -> None:
    api, worker = on_sqlite
    worker.gate.clear()
    response = api.client.post("/v1/score", json=GOOD | {"timeout": 0.05, "on_timeout": "cancel"})
    assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
    assert api.client.get(response.headers["location"]).json()["status"] in ("cancelled", "expired")


def test_a_call_whose_job_fails_gets_the_error_of_the_job(on_sqlite: Any) -> None:
    api, worker = on_sqlite
    worker.fails = True
    response = api.client.post("/v1/score", json=GOOD)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert api.client.get(response.headers["location"]).json()["status"] == "failed"


def test_the_answer_to_an_unexpected_exception_has_no_details(
    model: TinyModel, sqlite_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(_: Database) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(Database, "check", explode)
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False) as (api, _), capture_logs() as logs:
        response = api.client.get("/readyz", headers={"x-request-id": "mine-1"})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (500, "internal_error", "server_error")
    assert "mine-1" in error["message"]
    assert "secret" not in response.text
    assert "Zero" not in response.text
    assert response.headers["x-request-id"] == "mine-1"
    # A background task asks the database, too, and fails on its own account.
    assert "unexpected error" in [entry["event"] for entry in logs if entry.get("exc_info")]
