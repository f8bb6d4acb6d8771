"""Which routes require a key, and which scope of it."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.store.identifiers import new_job_id
from jobs.tenancy.keys import Scope
from tests.api.callers.guarded import Guarded, send
from tests.api.every_route import OPERATIONS, WEBHOOK_BODY, Operation, delivery_of, request
from tests.api.serving import RunningApi


def document_of(api: RunningApi) -> dict[str, Any]:
    with api.client_with(None) as client:
        document: dict[str, Any] = client.get("/openapi.json").json()
    return document


def test_every_route_requires_a_key_or_is_listed_as_open(guarded: Guarded) -> None:
    scopes = {(operation.method, operation.path): operation.scope for operation in OPERATIONS}
    document = document_of(guarded.api)
    assert document["components"]["securitySchemes"]["ApiKey"]["scheme"] == "bearer"
    with guarded.api.client_with(None) as client:
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                scope = scopes[method, path]
                secured = scope is not None
                assert operation.get("security") == ([{"ApiKey": [scope]}] if secured else None), (method, path)
                assert secured == ({"401", "403", "429"} <= operation["responses"].keys()), (method, path)
                ids = {"job_id": new_job_id(), "delivery_id": "msg_0", "file_id": "file_0", "batch_id": "batch_0"}
                ids["model_id"] = "tiny"
                answer = client.request(method, path.format(**ids), json={})
                assert (answer.status_code == 401) == secured, (method, path)


@pytest.mark.parametrize(
    "path", ["/", "/livez", "/metrics", "/openapi.json", "/docs", "/docs/swagger-ui.css", "/page/main.js"]
)
def test_open_routes_need_no_key_and_ignore_an_invalid_one(guarded: Guarded, path: str) -> None:
    assert send(guarded.api, path=path).status_code == 200
    assert send(guarded.api, "Bearer nonsense", path=path).status_code == 200


def test_metrics_contain_no_tenant_and_no_key(guarded: Guarded) -> None:
    send(guarded.api, f"Bearer {guarded.keys['good']}")
    text = send(guarded.api, path="/metrics").text
    assert "scoreline_" in text
    for word in ("acme", "default", guarded.keys["good"][6:22]):
        assert word not in text


@pytest.mark.parametrize(
    "operation",
    [operation for operation in OPERATIONS if operation.scope is not None],
    ids=lambda operation: f"{operation.method} {operation.path}",
)
def test_each_route_requires_the_scope_that_it_documents(guarded: Guarded, operation: Operation) -> None:
    with guarded.api.client_with(guarded.keys["good"]) as owner:
        job_id = delivery_id = ""
        if operation.needs_job:
            job_id = owner.post("/v1/jobs", json=WEBHOOK_BODY | {"items": []}).json()["id"]
            delivery_id = delivery_of(owner, job_id)
        for scope in Scope:
            with guarded.api.client_with(guarded.keys[scope.value]) as client:
                response = request(guarded.api, operation, job_id, client, delivery_id, owner)
            if scope is operation.scope:
                assert response.status_code == operation.status, response.text
            else:
                error = response.json()["error"]
                assert (response.status_code, error["code"]) == (403, "insufficient_scope")
                assert error["type"] == "permission_error"
                assert f"`{operation.scope}`" in error["message"]


def test_a_request_without_a_key_is_refused_before_its_body_is_parsed(guarded: Guarded) -> None:
    with guarded.api.client_with(None) as client:
        for headers in ({}, {"Content-Type": "application/x-ndjson"}):
            assert client.post("/v1/jobs", content=b"{" * 100_000, headers=headers).status_code == 401
