"""The OpenAPI document says what is so: every operation, every field, every error."""

from __future__ import annotations

from typing import Any

import pytest

from api.answers.schemas import ErrorEnvelope, JobBody, ScoreBody, ScoreLine
from scoring.error_codes import STATUS, ErrorCode
from tests.api.every_route import BODY, OPERATIONS, TOLD_BODY, Operation, request
from tests.api.serving import RunningApi

FRAMEWORK = {ErrorCode.METHOD_NOT_ALLOWED}
"""What is answered where there is no route."""


@pytest.fixture(scope="module")
def document(api: RunningApi) -> dict[str, Any]:
    document: dict[str, Any] = api.client.get("/openapi.json").json()
    return document


def test_every_operation_is_known_to_these_tests(document: dict[str, Any]) -> None:
    documented = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert documented == {(operation.method, operation.path) for operation in OPERATIONS}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: f"{operation.method} {operation.path}")
def test_an_answer_has_the_documented_status_and_shape(
    api: RunningApi, document: dict[str, Any], operation: Operation
) -> None:
    job = api.wait(api.submit(**TOLD_BODY)["id"])
    response = request(api, operation, job["id"])
    assert response.status_code == operation.status, response.text
    operation.shape.model_validate(response.json(), strict=True)
    documented = document["paths"][operation.path][operation.method]["responses"]
    reference = documented[str(operation.status)]["content"]["application/json"]["schema"]["$ref"]
    assert reference == f"#/components/schemas/{operation.shape.__name__}"


def test_lines_have_the_documented_shape(api: RunningApi) -> None:
    job = api.wait(api.submit(**BODY)["id"])
    response = api.client.get(job["urls"]["scores"], headers={"accept": "application/x-ndjson"})
    lines = [ScoreLine.model_validate_json(line, strict=True) for line in response.text.splitlines()]
    assert [line.index for line in lines] == [0, 1]


def test_error_responses_are_documented_in_the_envelope_under_their_status(document: dict[str, Any]) -> None:
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
    assert seen == set(ErrorCode) - FRAMEWORK


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
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


def test_bodies_are_documented_with_examples_that_work(api: RunningApi, document: dict[str, Any]) -> None:
    for path, shape in (("/v1/score", ScoreBody), ("/v1/jobs", JobBody)):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            shape.model_validate(example["value"])
            assert api.client.post(path, json=example["value"]).status_code < 300


def test_what_webhooks_are_sent_is_documented(document: dict[str, Any]) -> None:
    operation = document["webhooks"]["job.ended"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/JobEvent"}
    headers = {parameter["name"] for parameter in operation["parameters"]}
    assert headers == {"webhook-id", "webhook-timestamp", "webhook-signature"}
    assert set(operation["responses"]) == {"204"}


def test_the_interactive_documentation_is_served(api: RunningApi) -> None:
    assert "swagger" in api.client.get("/docs").text
