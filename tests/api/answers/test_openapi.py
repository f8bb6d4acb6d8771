"""The OpenAPI document is correct: every operation, every field and every error."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter

import scoreline
from api.answers.decisions.schemas import DecisionsBody, SystemOneBody, WithJudged
from api.answers.error_responses import STATUS
from api.answers.examples import ANSWERS
from api.answers.items.request_schemas import BatchEvent, Event, JobBody, LikelihoodBody, LikelihoodJobBody, ScoreBody
from api.answers.items.result_schemas import ScoreLine, Shape, WithOrigin
from api.answers.schemas.jobs import ErrorEnvelope, Job
from api.answers.schemas.reranking import EitherRanking
from api.application import with_routes
from api.routes.deployment import documentation
from jobs.store import webhook_events
from scoring.error_codes import ErrorCode
from tests.api.every_route import BODY, OPERATIONS, Operation, job_for, request
from tests.api.serving import RunningApi

ROOT = Path(__file__).parents[3]

_SHAPES: list[type[BaseModel]] = [one for base in (Shape, WithOrigin, WithJudged) for one in base.__subclasses__()] + [
    EitherRanking
]
SHAPES = {shape.__name__: shape for shape in _SHAPES}

NOT_OF_A_ROUTE = {ErrorCode.METHOD_NOT_ALLOWED, ErrorCode.BATCH_EXPIRED, ErrorCode.BATCH_CANCELLED}
"""Errors that only the framework reports, before a route is reached, and those that stand only in files of batches."""


@pytest.fixture(scope="module")
def document(api: RunningApi) -> dict[str, Any]:
    document: dict[str, Any] = api.client.get("/openapi.json").json()
    return document


def test_these_tests_cover_every_operation(document: dict[str, Any]) -> None:
    documented = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert documented == {(operation.method, operation.path) for operation in OPERATIONS}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: f"{operation.method} {operation.path}")
def test_an_answer_has_the_documented_status_and_shape(
    api: RunningApi, document: dict[str, Any], operation: Operation
) -> None:
    response = request(api, operation, job_for(api, operation))
    assert response.status_code == operation.status, response.text
    if operation.shape is None:
        return
    operation.shape.model_validate(response.json(), strict=True)
    documented = document["paths"][operation.path][operation.method]["responses"]
    reference = documented[str(operation.status)]["content"]["application/json"]["schema"]["$ref"]
    assert reference == f"#/components/schemas/{operation.shape.__name__}"


@pytest.mark.parametrize(
    "path", ["/v1/score", "/v1/likelihood", "/v1/rerank", "/v1/completions", "/v1/systemone", "/v1/decisions"]
)
def test_the_job_of_any_call_is_read_with_the_documented_shape(
    api: RunningApi, document: dict[str, Any], path: str
) -> None:
    examples = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["examples"]
    for example in examples.values():
        answer = api.client.post(path, json=example["value"])
        assert answer.status_code == 200, answer.text
        job = api.client.get(f"/v1/jobs/{answer.json()['id']}")
        assert job.status_code == 200, job.text
        Job.model_validate(job.json(), strict=True)


def test_score_lines_have_the_documented_shape(api: RunningApi) -> None:
    job = api.wait(api.submit(**BODY)["id"])
    response = api.client.get(job["urls"]["scores"], headers={"accept": "application/x-ndjson"})
    lines = [ScoreLine.model_validate_json(line, strict=True) for line in response.text.splitlines()]
    assert [line.index for line in lines] == [0, 1]


def test_errors_are_documented_with_the_envelope_under_their_status(document: dict[str, Any]) -> None:
    seen: set[str] = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, response in operation["responses"].items():
                if status.startswith("2"):
                    continue
                content = response["content"]["application/json"]
                assert content["schema"] == {"$ref": "#/components/schemas/ErrorEnvelope"}, (method, path, status)
                for code, example in content["examples"].items():
                    ErrorEnvelope.model_validate(example["value"])
                    assert example["value"]["error"]["code"] == code
                    assert STATUS[ErrorCode(code)] == int(status)
                    seen.add(code)
    assert seen == set(ErrorCode) - NOT_OF_A_ROUTE


def test_the_document_is_put_together_once_and_not_on_the_event_loop(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    openapi = api.app.openapi

    def put_together() -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return openapi()

    monkeypatch.setattr(api.app, "openapi", put_together)
    api.app.state.document = None
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: api.client.get("/openapi.json").content, range(16)))
    assert len(set(answers)) == 1
    assert len(threads) == 1
    assert threads[0].startswith("AnyIO worker thread")


def test_every_reference_in_the_document_can_be_resolved(document: dict[str, Any]) -> None:
    def references(node: Any) -> set[str]:
        if isinstance(node, dict):
            own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
            return own.union(*map(references, node.values()))
        return set().union(*map(references, node)) if isinstance(node, list) else set()

    found = references(document)
    assert found
    for reference in found:
        node: Any = document
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]


def test_the_documented_examples_of_bodies_are_accepted(api: RunningApi, document: dict[str, Any]) -> None:
    shapes: dict[str, Any] = {
        "/v1/score": ScoreBody,
        "/v1/likelihood": LikelihoodBody,
        "/v1/systemone": SystemOneBody,
        "/v1/decisions": DecisionsBody,
        "/v1/jobs": LikelihoodJobBody | JobBody,
    }
    for path, shape in shapes.items():
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            TypeAdapter(shape).validate_python(example["value"])
            assert api.client.post(path, json=example["value"]).status_code < 300


def test_the_requests_to_webhooks_are_documented(document: dict[str, Any]) -> None:
    for name, schema in (("job.ended", "JobEvent"), ("batch.ended", "BatchEnd")):
        operation = document["webhooks"][name]["post"]
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": f"#/components/schemas/{schema}"}
        headers = {parameter["name"] for parameter in operation["parameters"]}
        assert headers == {"webhook-id", "webhook-timestamp", "webhook-signature"}
        assert set(operation["responses"]) == {"204"}


def test_the_documented_events_are_those_that_webhooks_tell_of() -> None:
    assert get_args(Event) == tuple(webhook_events.Event)
    assert get_args(BatchEvent) == tuple(webhook_events.BatchEvent)


def test_the_committed_document_is_that_of_the_code() -> None:
    written = (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert json.loads(written) == with_routes().openapi(), "run  make openapi"


def test_every_server_gives_the_committed_document(document: dict[str, Any]) -> None:
    assert document == with_routes().openapi()


def test_every_body_and_every_answer_has_an_example_of_its_shape(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            for content in operation.get("requestBody", {}).get("content", {}).values():
                assert content.get("examples") or content.get("example"), f"{where}: no example of the body"
            for status, response in operation["responses"].items():
                if status.startswith("2") and "application/json" in response.get("content", {}):
                    content = response["content"]["application/json"]
                    name = content["schema"]["$ref"].rpartition("/")[2]
                    assert "example" in content, f"{where}: add {name} to api/answers/examples.py"
                    SHAPES[name].model_validate_json(json.dumps(content["example"]), strict=True)


def test_no_example_is_left_over(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    for shape in ANSWERS:
        assert f'"#/components/schemas/{shape}"' in text, shape


def test_the_start_page_names_all_doors(api: RunningApi, document: dict[str, Any]) -> None:
    start = api.client.get("/").json()
    assert (start["name"], start["version"]) == ("scoreline", scoreline.__version__)
    doors = {(door["method"].lower(), door["path"]) for door in start["doors"]}
    assert doors == {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert all(door["summary"].endswith(".") for door in start["doors"])
    for path in (start["documentation"], start["openapi"]):
        assert api.client.get(path).status_code == 200


def test_the_documentation_page_needs_nothing_from_outside(api: RunningApi) -> None:
    page = api.client.get("/docs")
    assert not re.findall(r"""["'(]\s*(?:https?:)?//[^"')]*""", page.text)
    named = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
    assert {f"/docs/{name}" for name in documentation.ASSETS} == set(named)
    for path in named:
        asset = api.client.get(path)
        assert (asset.status_code, len(asset.content) > 1_000) == (200, True)
    assert "'/openapi.json'" in page.text
    assert '"validatorUrl": null' in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_only_the_files_of_the_page_are_served(api: RunningApi) -> None:
    for name in ("redoc.standalone.js", "core.py", "..%2Fcore.py", "%2Fetc%2Fpasswd"):
        assert api.client.get(f"/docs/{name}").status_code == 404
