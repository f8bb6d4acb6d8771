"""Bodies that come slowly, never, or without being asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key
from tests.api.every_route import OPERATIONS, Operation
from tests.api.requests.raw_requests import JSON, begin, begin_body
from tests.api.requests.uploads.uploading import LINES, body, nothing_is_left, receiving
from tests.api.serving import KEY, UNKNOWN_KEY, RunningApi, eventually, running_api
from tests.api.tiny_model import TinyModel

WITH_BODY = [operation for operation in OPERATIONS if operation.body is not None]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop the rest of unread bodies for a short time only."""
    monkeypatch.setattr("api.server.connection.DRAIN_SECONDS", 0.1)


@pytest.fixture(params=[{"body_silence_seconds": 0.3}, {"body_seconds": 0.4, "body_silence_seconds": 0.3}])
def hurried(
    model: TinyModel, sqlite_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[RunningApi, str]]:
    """A server that waits for a short time only, and the name of the limit that bodies reach first."""
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **request.param) as (api, _):
        yield api, next(iter(request.param))


def test_a_body_that_is_silent_or_takes_too_long_is_given_up(hurried: tuple[RunningApi, str]) -> None:
    api, limit = hurried
    ended = threading.Event()
    with closing(begin_body(api, "/v1/score", 1_000, b"{")) as request:

        def trickle() -> None:
            while limit == "body_seconds" and not ended.wait(0.1):
                request.send(b" ")

        sender = threading.Thread(target=trickle)
        sender.start()
        answer = request.answer()
        ended.set()
        sender.join()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert ("as a whole" in answer.body.decode()) == (limit == "body_seconds")
        assert request.is_closed()
    metrics = api.client.get("/metrics").text
    assert f'scoreline_refused_requests_total{{limit="{limit}"}} 1.0' in metrics


def test_an_upload_that_comes_a_byte_at_a_time_is_given_up(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    """It is never silent, but the server has waited too long for it in all."""
    limits = {"upload_seconds": 0.2, "upload_bytes_per_second": 1_000}
    with (
        running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **limits) as (api, _),
        closing(begin(api, "POST /v1/jobs", {**LINES, "Content-Length": "10000"}, body(["a"] * 9))) as request,
    ):
        ended = threading.Event()

        def trickle() -> None:
            while not ended.wait(0.05):
                request.send(b"\n")

        sender = threading.Thread(target=trickle)
        sender.start()
        answer = request.answer()
        ended.set()
        sender.join()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert "has waited" in answer.body.decode()
        assert nothing_is_left(api)


def test_an_upload_may_take_longer_the_more_of_it_has_come(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    limits = {"upload_seconds": 0.1, "upload_bytes_per_second": 50}
    content = body(["a" * 90] * 10)
    with (
        running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **limits) as (api, _),
        closing(begin(api, "POST /v1/jobs", {**LINES, "Content-Length": str(len(content))}, content[:-1])) as request,
    ):
        eventually(lambda: receiving(api), "the upload begins")
        threading.Event().wait(0.3)
        assert receiving(api)
        request.send(content[-1:])
        assert request.answer().status == 202


@pytest.mark.parametrize("sent", [b"x" * 100, b"x" * 2**20], ids=["a part", "a megabyte"])
def test_a_client_that_sends_its_body_behind_the_refusal_can_read_it(api: RunningApi, sent: bytes) -> None:
    with closing(begin_body(api, "/v1/score", 2**21, b"", UNKNOWN_KEY)) as request:
        request.send(sent)
        assert request.answer().code == "invalid_api_key"
        assert request.is_closed()


@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: f"{operation.method} {operation.path}")
def test_a_body_is_asked_for_only_when_its_caller_may_send_it(api: RunningApi, operation: Operation) -> None:
    """A client that expects 100 is told to go on when, and only when, the server begins to read the body."""
    with closing(Database.open(api.store)) as store:
        reader = create_key(store, "default", "reader", {Scope.READ})[0]
    headers = {**JSON, "Expect": "100-continue", "Content-Length": "2"}
    line = f"{operation.method.upper()} {operation.path}"
    for key, status in ((UNKNOWN_KEY, b"401"), (reader, b"403"), (KEY, b"100")):
        with closing(begin(api, line, headers, key=key)) as request:
            assert request.socket.recv(12) == b"HTTP/1.1 " + status


FORM = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n{}\n\r\n--x--\r\n'
)


@pytest.mark.parametrize(
    ("path", "headers", "content"),
    [
        ("/v1/tokenize", JSON, b'{"text": " Paris"}'),
        ("/v1/jobs", LINES, body([" a", " b"])),
        ("/v1/files", {"Content-Type": "multipart/form-data; boundary=x"}, FORM),
    ],
    ids=["a body", "an upload", "a file"],
)
def test_a_declared_length_may_have_any_number_of_zeros_in_front(
    api: RunningApi, path: str, headers: dict[str, str], content: bytes
) -> None:
    zeros = "0" * 5_000
    declared = {**headers, "Content-Length": zeros + str(len(content))}
    with closing(begin(api, f"POST {path}", declared, content)) as request:
        answer = request.answer()
        assert answer.status in (200, 202), answer.body
    with closing(begin(api, f"POST {path}", {**headers, "Content-Length": zeros + str(10**18)})) as request:
        assert request.answer().code == "request_too_large"
