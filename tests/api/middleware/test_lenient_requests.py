"""``HEAD`` is served like ``GET`` without its body, and a slash too many is ignored."""

from __future__ import annotations

import asyncio
from http.client import HTTPConnection
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from api.answers.presentation import encode_lines
from api.middleware.lenient_requests import LenientRequests
from jobs.store.records import ScorePage
from tests.api.serving import KEY, RunningApi

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70]}


def ask(api: RunningApi, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, int, bytes]:
    """Send a request whose path no client changes. Returns the status, the declared length and the body."""
    connection = HTTPConnection(api.url.removeprefix("http://"), timeout=20)
    connection.request(method, path, headers={"Authorization": f"Bearer {KEY}"} | (headers or {}))
    response = connection.getresponse()
    length = int(response.headers.get("content-length", -1))
    body = response.read()
    # What follows on the connection must not be mistaken for a rest of the body.
    connection.request("GET", "/livez")
    assert connection.getresponse().status == 200
    connection.close()
    return response.status, length, body


@pytest.mark.parametrize(
    "path", ["/", "/livez", "/health", "/v1/models", "/v1/jobs", "/metrics", "/docs", "/v1/jobs/no"]
)
def test_head_is_answered_like_get_without_a_body(api: RunningApi, path: str) -> None:
    expected, length, body = ask(api, "GET", path)
    found = ask(api, "HEAD", path)
    assert (found[0], found[2]) == (expected, b"")
    assert found[1] == length or path == "/metrics"
    assert body


def test_head_of_a_stream_ends_with_its_headers(api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[ScorePage] = []

    def counted(page: ScorePage) -> bytes:
        pages.append(page)
        return encode_lines(page)

    monkeypatch.setattr("api.routes.jobs.encode_lines", counted)
    job = api.wait(api.submit(**BODY | {"items": ["a"] * 3_000})["id"])
    lines = {"Accept": "application/x-ndjson"}
    assert ask(api, "HEAD", job["urls"]["scores"], lines) == (200, -1, b"")
    assert len(pages) == 1, "no more of it is read"
    status, _, body = ask(api, "GET", job["urls"]["scores"], lines)
    assert (status, body.count(b"\n"), len(pages)) == (200, 3_000, 1 + 3)


def test_head_ends_what_would_go_on_sending() -> None:
    sent: list[Message] = []

    async def going_on(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _n in range(10):
            await send({"type": "http.response.body", "body": b"more", "more_body": True})

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(LenientRequests(going_on)({"type": "http", "method": "HEAD", "path": "/"}, receive, send))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert (sent[1]["body"], sent[1]["more_body"]) == (b"", False)


def test_head_of_a_path_that_takes_no_get_is_refused(api: RunningApi) -> None:
    assert ask(api, "HEAD", "/v1/score")[0] == 405
    assert ask(api, "HEAD", "/nowhere")[0] == 404


@pytest.mark.parametrize(
    "path",
    ["/v1/models/", "//v1/models", "/v1//models", "///v1/models//", "/v1/models/tiny/", "//livez", "//", "/health/"],
)
def test_a_slash_too_many_is_ignored(api: RunningApi, path: str) -> None:
    assert ask(api, "GET", path)[0] == 200


def test_a_body_is_read_at_a_path_with_a_slash_too_many(api: RunningApi) -> None:
    for path in ("/v1/score/", "/v1/rerank/", "/v2//rerank"):
        body = BODY if "score" in path else {"query": "London", "documents": ["Paris"]}
        assert api.client.post(path, json=body).status_code == 200
    documents = api.client.post("/v2/rerank/", json={"query": "London", "documents": ["Paris"]}).json()["results"]
    assert "document" not in documents[0], "it is the second version"


def test_metrics_are_found_only_at_their_own_path_so_that_a_proxy_can_hide_them(api: RunningApi) -> None:
    for path in ("/metrics/", "//metrics", "/metrics//"):
        assert ask(api, "GET", path)[0] == 404


@pytest.mark.parametrize("path", ["/%6detrics", "/%6civez", "/v1%2Fmodels", "/v1/%6dodels"])
def test_a_path_is_compared_as_it_was_sent(api: RunningApi, path: str) -> None:
    assert ask(api, "GET", path)[0] == 404


def test_the_name_of_a_model_may_be_sent_in_any_spelling(api: RunningApi) -> None:
    assert ask(api, "GET", "/v1/models/t%69ny")[0] == 200


def test_such_requests_are_counted_with_their_route(api: RunningApi) -> None:
    ask(api, "HEAD", "/v1/models/")
    text = api.client.get("/metrics").text
    assert 'method="HEAD",route="/v1/models",status="200"' in text
