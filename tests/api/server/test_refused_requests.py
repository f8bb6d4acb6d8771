"""Requests that are too large, too many or no HTTP are refused by the server itself, in the error envelope."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import starlette.requests
from structlog.testing import capture_logs

from api.server.refusals import MAX_PARAMETERS
from tests.api.server.raw_client import Answer, RawClient, connection_of, head, refused
from tests.api.serving import RunningApi, eventually, running_api
from tests.api.tiny_model import TinyModel

MAX_HEADER_BYTES, MAX_HEADERS, MAX_PIPELINED = 2_000, 20, 4


@pytest.fixture(scope="module")
def small(model: TinyModel, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    """A server with small limits."""
    folder = tmp_path_factory.mktemp("api")
    path = folder / "scoreline.db"
    shutil.copy(sqlite_template, path)
    with running_api(
        model.directory,
        f"sqlite:///{path}",
        folder,
        max_header_bytes=MAX_HEADER_BYTES,
        max_headers=MAX_HEADERS,
        max_pipelined_requests=MAX_PIPELINED,
    ) as (api, _):
        yield api


def filled(bytes_in_all: int) -> bytes:
    """Return a head of so many bytes."""
    empty = len(head("x-filling: "))
    return head("x-filling: " + "a" * (bytes_in_all - empty))


def check_refusal(answer: Answer, status: int, code: str) -> None:
    """Check what all refusals have in common."""
    assert (answer.status, answer.code) == (status, code)
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert answer.headers["connection"] == "close"
    assert answer.headers["content-type"] == "application/json"
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


def begin_body(api: RunningApi, client: RawClient) -> None:
    """Send the beginning of a request whose body comes in chunks, and return when its route reads the body."""
    client.send(CHUNKED, b'1\r\n"\r\n')
    eventually(lambda: connection_of(api, client)._in_body, "the route reads the body")


CHUNKED = head("transfer-encoding: chunked", "content-type: application/json", line="POST /v1/score HTTP/1.1")
TOO_LARGE = {
    "an unfinished header": head()[:-2] + b"x-filling: " + b"a" * MAX_HEADER_BYTES,
    "an unfinished name of a header": head()[:-2] + b"a" * MAX_HEADER_BYTES,
    "an unfinished target": b"GET /" + b"a" * MAX_HEADER_BYTES,
    "a long header": filled(MAX_HEADER_BYTES + 100),
    "a long target": head(line="GET /" + "a" * MAX_HEADER_BYTES + " HTTP/1.1"),
    "several headers": head(*[f"x-{n}: {'a' * 200}" for n in range(MAX_HEADER_BYTES // 200)]),
    "empty lines": b"\r\n" * (MAX_HEADER_BYTES // 2 + 1),
}
TOO_LARGE_IN_A_BODY = {
    "a long trailer": b"0\r\nx-filling: " + b"a" * MAX_HEADER_BYTES + b"\r\n\r\n",
    "an unfinished trailer": b"0\r\nx-filling: " + b"a" * MAX_HEADER_BYTES,
    "an unfinished extension of a chunk": b"1;" + b"a" * MAX_HEADER_BYTES,
}


@pytest.mark.parametrize("what", [*TOO_LARGE, *TOO_LARGE_IN_A_BODY])
def test_headers_that_are_too_large_are_refused_at_the_first_byte_too_many(small: RunningApi, what: str) -> None:
    before = refused(small, "max_header_bytes")
    with RawClient(small) as client:
        if what in TOO_LARGE:
            client.send(TOO_LARGE[what])
        else:
            begin_body(small, client)
            client.send(TOO_LARGE_IN_A_BODY[what])
        check_refusal(client.answer(), 431, "headers_too_large")
        assert client.is_closed()
    assert refused(small, "max_header_bytes") == before + 1


def test_headers_that_just_fit_are_answered(small: RunningApi) -> None:
    with RawClient(small) as client:
        for _ in range(3):
            client.send(filled(MAX_HEADER_BYTES - 100))
            assert client.answer().status == 200
        for size in (100, 1000, 5000):  # The bytes of a body do not count.
            body = head(f"content-length: {size}", line="POST /v1/score HTTP/1.1") + b"a" * size
            client.send(body, filled(MAX_HEADER_BYTES - 100))
            assert [client.answer().status for _ in range(2)] == [415, 200]
        client.send(head(*["x-a: b"] * (MAX_HEADERS - 1)))
        assert client.answer().status == 200


@pytest.mark.parametrize("in_trailers", [False, True])
def test_too_many_headers_are_refused(small: RunningApi, in_trailers: bool) -> None:
    before = refused(small, "max_headers")
    many = ["x-a: b"] * (MAX_HEADERS + 1)
    with RawClient(small) as client:
        client.send(CHUNKED + "\r\n".join(["0", *many, "", ""]).encode() if in_trailers else head(*many))
        check_refusal(client.answer(), 431, "headers_too_large")
        assert client.is_closed()
    assert refused(small, "max_headers") == before + 1


def test_too_many_parameters_are_refused_before_anybody_parses_them(small: RunningApi) -> None:
    with RawClient(small) as client:
        client.send(head(line="GET /livez?" + "a&" * (MAX_PARAMETERS - 1) + "a HTTP/1.1"))
        assert client.answer().status == 200
        client.send(head(line="GET /livez?" + "a&" * MAX_PARAMETERS + " HTTP/1.1"))
        check_refusal(client.answer(), 431, "headers_too_large")


def test_a_client_that_sends_megabytes_of_headers_can_still_read_why_they_are_refused(small: RunningApi) -> None:
    with RawClient(small) as client, capture_logs() as logs:
        client.send(head("x-request-id: flood-1")[:-2], b"x-filling: ", b"a" * 5_000_000)
        answer = client.answer()
        assert (answer.status, answer.headers["x-request-id"]) == (431, "flood-1")
        assert client.is_closed()
    (line,) = [entry for entry in logs if entry["event"] == "request"]
    assert (line["request_id"], line["status"], line["method"], line["path"]) == ("flood-1", 431, None, None)
    assert line["code"] == "headers_too_large"


def test_a_refusal_counts_among_the_answers(small: RunningApi) -> None:
    with RawClient(small) as client:
        client.send(TOO_LARGE["a long header"])
        assert client.answer().status == 431
    metrics = small.client.get("/metrics").text
    assert 'scoreline_http_requests_total{method="other",route="other",status="431"}' in metrics
    assert 'scoreline_errors_total{code="headers_too_large"}' in metrics


UPGRADE = ["connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__"]
NO_HTTP = {
    "the beginning of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an unknown method": b"GARBAGE\r\n\r\n",
    "a header without a colon": b"GET /livez HTTP/1.1\r\nno colon\r\n\r\n",
    "a target that is not ASCII": b"GET /\xff HTTP/1.1\r\n\r\n",
    "a target without a path": b"CONNECT localhost:80 HTTP/1.1\r\n\r\n",
    "a target that is no URL": b"GET http://[ HTTP/1.1\r\n\r\n",
    "two lengths": b"POST /v1/score HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    "a length past all numbers": b"POST /v1/score HTTP/1.1\r\ncontent-length: " + b"9" * 1000 + b"\r\n\r\n",
    "a chunk without a length": CHUNKED + b"no number\r\n",
    "two lengths of a request to upgrade": head(*UPGRADE, "content-length: 1", "transfer-encoding: chunked"),
    "a body of unknown length of a request to upgrade": head(*UPGRADE, "transfer-encoding: gzip"),
    "a chunk without a length of a request to upgrade": head(*UPGRADE, "transfer-encoding: chunked") + b"no number\r\n",
}


@pytest.mark.parametrize("what", NO_HTTP)
def test_what_is_no_http_is_refused(small: RunningApi, what: str) -> None:
    with RawClient(small) as client, capture_logs() as logs:
        client.send(NO_HTTP[what])
        check_refusal(client.answer(), 400, "invalid_request")
        assert client.is_closed()
    assert "error" not in {entry["log_level"] for entry in logs}


def test_the_route_of_a_request_whose_body_turns_out_invalid_ends(small: RunningApi) -> None:
    with RawClient(small) as client, capture_logs() as logs:
        begin_body(small, client)
        client.send(b"no number\r\n")
        check_refusal(client.answer(), 400, "invalid_request")
        eventually(lambda: {entry.get("path") for entry in logs} >= {None, "/v1/score"}, "both lines are logged")
    assert [entry["status"] for entry in logs if entry.get("path") == "/v1/score"] == [499]


def test_requests_sent_ahead_are_answered_in_turn_and_a_flood_of_them_is_refused(small: RunningApi) -> None:
    before = refused(small, "max_pipelined_requests")
    ahead = [head(f"x-request-id: n{n}") for n in range(10_000)]
    with RawClient(small) as client:
        client.send(*ahead[:MAX_PIPELINED])
        assert [client.answer().headers["x-request-id"] for _ in range(MAX_PIPELINED)] == ["n0", "n1", "n2", "n3"]
        client.send(*ahead)
        answers = [client.answer()]
        while answers[-1].status == 200:
            answers.append(client.answer())
        assert client.is_closed()
    assert [answer.headers["x-request-id"] for answer in answers] == [f"n{n}" for n in range(len(answers))]
    assert len(answers) == MAX_PIPELINED + 1
    assert (answers[-1].status, answers[-1].code) == (429, "too_many_open_requests")
    assert answers[-1].headers["retry-after"] == "1"
    assert refused(small, "max_pipelined_requests") == before + 1


def test_a_client_is_told_to_go_on_when_its_body_is_wanted(small: RunningApi) -> None:
    asking = ["expect: 100-continue", "content-length: 2", "content-type: application/json"]
    with RawClient(small) as client:
        client.send(head(*asking, line="POST /v1/score HTTP/1.1"))
        assert client.answer().status == 100
        client.send(b"{}")
        assert (answer := client.answer()).status == 400
        assert answer.code == "missing_query"


def test_a_trailer_does_not_pass_for_a_header(small: RunningApi) -> None:
    with RawClient(small) as client:
        client.send(CHUNKED, b"2\r\n{}\r\n0\r\nx-request-id: trailer\r\n\r\n", head("x-request-id: next"))
        assert client.answer().headers["x-request-id"] != "trailer"
        assert client.answer().headers["x-request-id"] == "next"


def test_cookies_are_not_parsed(small: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's way to unquote a cookie takes quadratic time."""
    parsed: list[str] = []

    def noted(cookies: str) -> dict[str, str]:
        parsed.append(cookies)
        return {}

    monkeypatch.setattr(starlette.requests, "cookie_parser", noted)
    headers = {"cookie": 'a="' + "\\" * 1000 + '"'}
    assert small.client.get("/livez", headers=headers).status_code == 200
    assert parsed == []
