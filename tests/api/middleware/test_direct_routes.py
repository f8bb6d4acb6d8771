"""The busiest routes are called past the framework, and nobody can tell by the answers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from api.application import ROUTERS
from api.middleware.direct_routes import DirectRoutes
from tests.api.every_route import BODY, RANKING
from tests.api.serving import KEY, RunningApi, running_api
from tests.api.tiny_model import TinyModel


def new_key() -> dict[str, str]:
    """Return a header that the framework checks, so that a request with it goes the framework's way."""
    return {"Idempotency-Key": uuid4().hex}


@pytest.fixture(scope="module")
def api(model: TinyModel, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    folder = tmp_path_factory.mktemp("direct")
    path = folder / "scoreline.db"
    shutil.copy(sqlite_template, path)
    with running_api(model.directory, f"sqlite:///{path}", folder, max_query_characters=50) as (api, _):
        yield api


def test_the_busiest_routes_are_among_them() -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    direct = {path for _, path in DirectRoutes(FastAPI(), routes)._direct}
    assert direct >= {"/v1/score", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/tokenize"}
    # This one has a dependency of its own: it counts some of its requests as uploads.
    assert "/v1/jobs" not in direct


def test_the_framework_is_asked_only_for_requests_with_a_header_that_it_checks(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    async def solve(*_: Any, **given: Any) -> Any:
        asked.append(given)
        raise RuntimeError

    monkeypatch.setattr("fastapi.routing.solve_dependencies", solve)
    assert api.client.post("/v1/score", json=BODY).status_code == 200
    assert not asked
    assert api.client.post("/v1/score", json=BODY, headers=new_key()).status_code == 500
    assert asked


@pytest.mark.parametrize("path", ["/v1/score", "/v2/rerank"])
@pytest.mark.parametrize(
    "change",
    [
        {"headers": {"Authorization": ""}},
        {"headers": {"Authorization": f"Bearer {KEY}x"}},
        {"headers": {"Content-Type": "text/plain"}},
        {"content": b"{", "json": None, "headers": {"Content-Type": "application/json"}},
        {"json": {"query": "x" * 51}},
        {"json": {"model": "another"}},
        {"json": {"items": None, "documents": None}},
        {"params": {"unknown": "parameter"}},
    ],
    ids=lambda change: str(change)[:40],
)
def test_both_ways_give_the_same_answer(api: RunningApi, path: str, change: dict[str, Any]) -> None:
    body = RANKING if path == "/v2/rerank" else BODY
    found = [_send(api, path, body, change, more) for more in ({}, new_key())]
    direct, by_framework = map(_without_ids, found)
    assert direct == by_framework
    assert found[0].headers.keys() == found[1].headers.keys()


def _send(
    api: RunningApi, path: str, body: dict[str, Any], change: dict[str, Any], more: dict[str, str]
) -> httpx2.Response:
    options = {"json": body} | change
    if options["json"] is not None:
        options["json"] = body | options["json"]
    return api.client.post(path, **options | {"headers": change.get("headers", {}) | more})


def _without_ids(response: httpx2.Response) -> dict[str, Any]:
    body = response.json()
    return {"status": response.status_code} | {name: body[name] for name in body.keys() - {"id", "created"}}


def test_both_ways_are_counted_under_the_name_of_the_route(api: RunningApi) -> None:
    name = 'scoreline_http_requests_total{method="POST",route="/v1/tokenize",status="200"} '
    assert api.client.post("/v1/tokenize", json={"text": "a"}).status_code == 200
    assert any(line.startswith(name) for line in api.client.get("/metrics").text.splitlines())


def test_an_invalid_header_is_refused_by_its_name(api: RunningApi) -> None:
    response = api.client.post("/v1/score", json=BODY, headers={"Idempotency-Key": "a b"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "Idempotency-Key")
