"""Long bodies are read in a process of their own, which ends with its client, its deadline or its memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from api.callers.authentication import Principal
from api.reading import ReadingContext
from api.requests import submission
from api.requests.bodies.json_body import parse_json
from api.requests.calls import read_call
from api.requests.sender import Sender
from api.requests.submission import read_job
from api.text_process import body_reader
from api.text_process.messages import Read, pack, unpack
from api.text_process.process import TextProcess
from api.threads import Threads
from jobs.tenancy.tenants import Tenant
from scoring.error_codes import RequestError
from tests.api.processes.test_process import api_process, wait_for
from tests.api.serving import KEY, RunningApi, eventually, running_api
from tests.api.text_process.works import WORKING, work_for_ever
from tests.api.tiny_model import TinyModel

READERS = {"a job": read_job, "a call": partial(read_call, path="/v1/score")}

SENDER = Sender(Principal(Tenant("acme"), frozenset(), None), "key")

LONG_WORK = b'{"query": [' + (b"9" * 4_000 + b",") * 8_000 + b"0]}"
"""A body whose parsing takes about a second and little memory: the time grows with the square of a number's length."""


def job(items: int = 3, **fields: Any) -> dict[str, Any]:
    return {"query": "The capital", "items": [f" item {n}" for n in range(items)], "label_token_ids": [70], **fields}


def long_job() -> bytes:
    """A valid job that is too long for a thread."""
    return json.dumps(job(unknown="x" * body_reader.LONG_BYTES)).encode()


def post(api: RunningApi, body: bytes) -> httpx2.Response:
    return api.client.post("/v1/jobs", content=body, headers={"content-type": "application/json"})


def children(of: int) -> list[int]:
    """Return the processes that a process has started and that have not been waited for."""
    with suppress(FileNotFoundError, ProcessLookupError):
        found = Path(f"/proc/{of}/task").glob("*/children")
        return [int(pid) for path in found for pid in path.read_text().split()]
    return []


def readers(of: int) -> list[int]:
    """Return the children of an API process that fork a process for each long body."""
    return [pid for pid in children(of) if b"api.reading_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def reading_children(of: int) -> list[int]:
    """Return the processes that read a long body for an API process now."""
    return [child for reader in readers(of) for child in children(reader)]


def working_children(of: int) -> list[int]:
    """Return those of them that have received the body, and work for ever."""
    return [pid for pid in reading_children(of) if Path(f"/proc/{pid}/comm").read_text().strip() == WORKING]


class Sent:
    """A request that was sent over a connection of its own, and whose answer nobody has read yet."""

    def __init__(self, url: str, body: bytes) -> None:
        self._connection = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        head = f"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self._connection.sendall(head.encode() + body)

    def leave(self) -> None:
        self._connection.close()

    def answer(self) -> tuple[int, dict[str, Any]]:
        head, _, body = b"".join(iter(lambda: self._connection.recv(65536), b"")).partition(b"\r\n\r\n")
        self._connection.close()
        return int(head.split()[1]), json.loads(body)


@pytest.fixture(scope="module")
def small(model: TinyModel, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    """A server whose process for long bodies may use little memory, shared by the tests of this module."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "scoreline.db").write_bytes(sqlite_template.read_bytes())
    limits: dict[str, Any] = {"text_process_bytes": 128 * 2**20}
    url = f"sqlite:///{folder}/scoreline.db"
    with running_api(model.directory, url, folder, **limits) as (api, _):
        yield api


def test_no_long_body_is_parsed_in_the_process_that_serves(small: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def noting(data: bytes) -> object:
        parsed.append(data)
        return parse_json(data)

    monkeypatch.setattr(submission, "parse_json", noting)
    bodies = [
        json.dumps(job()).encode(),
        json.dumps(job(unknown=" " * 500_000)).encode(),
        json.dumps(job(unknown=[0] * 100_000)).encode(),
        json.dumps(job(unknown=[[[]]] * 30_000)).encode(),
        long_job(),
    ]
    assert [post(small, body).status_code for body in bodies] == [202] * 5
    assert set(parsed) == set(bodies[:2])


TEXTS = [f" item {n}" for n in range(300)]
SEVERAL_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "labels of several tokens": (
        "/v1/jobs",
        {"query": "The", "items": TEXTS, "labels": [" yes it is", " no"], "label_scoring": "sequence"},
    ),
    "likelihoods": ("/v1/jobs", {"query": "The", "items": TEXTS, "kind": "likelihood"}),
    "completions": (
        "/v1/completions",
        {"prompt": TEXTS[:3], "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0},
    ),
}


@pytest.mark.parametrize(("path", "fields"), SEVERAL_KINDS.values(), ids=SEVERAL_KINDS)
def test_what_another_process_has_read_gives_the_same_scores(
    small: RunningApi, path: str, fields: dict[str, Any]
) -> None:
    def answered(**padding: Any) -> dict[str, Any]:
        response = small.client.post(path, json=fields | padding)
        assert response.is_success, response.text
        found: dict[str, Any] = response.json()
        found = small.wait(found["id"])["result"] if path == "/v1/jobs" else found
        return {name: value for name, value in found.items() if name not in ("id", "created", "warnings")}

    short = answered()
    assert len(short.get("scores") or short.get("logprob") or short["choices"]) == len(fields.get("items", TEXTS[:3]))
    assert answered(padding=["x"] * 2**16) == short


def test_a_body_that_needs_too_much_memory_is_refused_and_the_next_is_read(small: RunningApi) -> None:
    refused = post(small, b'{"query": [' + b"[]," * 3_000_000 + b"0]}")
    assert refused.status_code == 413
    assert refused.json()["error"]["code"] == "request_too_large"
    assert "128 MiB" in refused.json()["error"]["message"]
    assert 'scoreline_refused_requests_total{limit="text_process_bytes"}' in small.client.get("/metrics").text
    assert post(small, long_job()).status_code == 202
    eventually(lambda: not reading_children(os.getpid()), "the processes that read bodies have ended")


def test_a_client_that_leaves_ends_the_process_that_reads_its_body(
    small: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.routes.jobs.read_job", work_for_ever)
    sent = Sent(small.url, long_job())
    eventually(lambda: working_children(os.getpid()), "a process reads the body")
    sent.leave()
    eventually(lambda: not reading_children(os.getpid()), "that process has ended")
    monkeypatch.undo()
    assert post(small, long_job()).status_code == 202


@pytest.mark.parametrize(
    ("number", "status", "code"),
    [
        (signal.SIGKILL, 503, "overloaded"),
        # A library that gets no memory ends its process in one of these ways.
        (signal.SIGABRT, 413, "request_too_large"),
        (signal.SIGSEGV, 413, "request_too_large"),
        (signal.SIGBUS, 413, "request_too_large"),
    ],
)
def test_a_process_that_a_signal_ends_is_an_error_that_says_what_to_do(
    small: RunningApi, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, status: int, code: str
) -> None:
    monkeypatch.setattr("api.routes.jobs.read_job", work_for_ever)
    sent = Sent(small.url, long_job())
    eventually(lambda: working_children(os.getpid()), "a process reads the body")
    (child,) = working_children(os.getpid())
    os.kill(child, number)
    answered, answer = sent.answer()
    assert (answered, answer["error"]["code"]) == (status, code)
    monkeypatch.undo()
    assert post(small, long_job()).status_code == 202


def test_a_thread_stops_reading_when_its_client_leaves(small: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    reading: list[bytes] = []

    def read_for_ever(context: ReadingContext, data: bytes, _: object) -> None:
        reading.append(data)
        try:
            while True:
                context.stop_if_unwanted()
        finally:
            reading.clear()

    monkeypatch.setattr("api.routes.jobs.read_job", read_for_ever)
    sent = Sent(small.url, b"{}")
    eventually(lambda: reading, "a thread reads the body")
    sent.leave()
    eventually(lambda: not reading, "the thread has stopped")


BODIES: dict[str, dict[str, Any]] = {
    "texts": job(600, metadata={"run": "7"}, priority="bulk", expires_in=60),
    "ids": {"query": [1, 2, 3], "items": [[4] * (n % 9) for n in range(600)], "label_token_ids": [5, 6]},
    "item first": job(item_first=True, apply_softmax=True),
    "no items": job(0),
    "unknown fields": job(colour="red", webhook={"url": "https://example.com/hook", "secret": 1}),
    "a bad item": job(items=2) | {"items": ["a", 7]},
    "an id that is no token": {"query": [1], "items": [[10**9]], "label_token_ids": [5]},
    "another model": job(model="other"),
    "nothing": {},
}


def plain(value: object) -> object:
    """Return a value with the bytes and types of its arrays in place of the arrays."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, RequestError):
        return vars(value)
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    names: list[str] | None = getattr(type(value), "__slots__", None)
    if names and type(value).__module__.partition(".")[0] in ("jobs", "scoring", "api"):
        # Each call that is read gets a random key.
        return {name: plain(getattr(value, name)) for name in names if name != "notice_key"}
    return value


def read_here(reading: ReadingContext, function: Any, body: bytes) -> object:
    try:
        return function(reading, body, SENDER)
    except RequestError as error:
        return error


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("function", READERS.values(), ids=READERS)
def test_what_a_process_sends_is_what_was_read(small: RunningApi, function: Any, name: str) -> None:
    read = read_here(small.app.state.service.reading, function, json.dumps(BODIES[name]).encode())
    if not isinstance(read, RequestError):
        assert plain(unpack(pack(Read(read)))) == plain(Read(read))


@pytest.mark.slow
def test_another_process_reads_the_same_as_a_thread(small: RunningApi) -> None:
    reading = small.app.state.service.reading

    async def there(process: TextProcess, function: Any, body: bytes) -> object:
        try:
            return await process.read("acme", function, body, SENDER)
        except RequestError as error:
            return error

    async def compare() -> None:
        process = TextProcess(reading, Threads())
        keeping = asyncio.create_task(process.keep())
        for name, fields in BODIES.items():
            body = json.dumps(fields).encode()
            for function in READERS.values():
                assert plain(await there(process, function, body)) == plain(read_here(reading, function, body)), name
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(compare())


def test_a_body_that_takes_too_long_is_refused(small: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    service = small.app.state.service
    assert post(small, long_job()).status_code == 202, "the process has started"
    limits = service.reading.limits.model_copy(update={"text_process_seconds": 0.001})
    monkeypatch.setattr(service.bodies.process, "_reading", replace(service.reading, limits=limits))
    refused = post(small, LONG_WORK)
    assert refused.status_code == 413
    assert refused.json()["error"]["code"] == "request_too_large"
    assert "0.001 s" in refused.json()["error"]["message"]
    eventually(lambda: not reading_children(os.getpid()), "no process reads the body")


def test_signals_that_are_for_the_api_do_not_end_the_process_that_forks(small: RunningApi) -> None:
    assert post(small, long_job()).status_code == 202
    (reader,) = readers(os.getpid())
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(reader, number)
    assert post(small, long_job()).status_code == 202
    assert readers(os.getpid()) == [reader]


@pytest.mark.slow
def test_the_process_that_forks_is_started_again_when_it_was_killed(
    small: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.routes.jobs.read_job", work_for_ever)
    sent = Sent(small.url, long_job())
    eventually(lambda: working_children(os.getpid()), "a process reads a body")
    (reader,) = readers(os.getpid())
    os.kill(reader, signal.SIGKILL)
    eventually(lambda: reader not in children(os.getpid()), "the killed process was waited for")
    sent.leave()
    monkeypatch.undo()
    assert post(small, long_job()).status_code == 202


@pytest.mark.slow
def test_no_process_outlives_a_killed_api(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    settings = {"model": str(model.directory), "database_url": sqlite_url, "bell_socket": str(tmp_path / "bell")}
    with api_process(**settings, bootstrap_key=KEY) as (process, url), httpx2.Client(base_url=url) as client:
        wait_for(client, process)
        sent = Sent(url, LONG_WORK)
        eventually(lambda: reading_children(process.pid), "a process reads the body")
        started = [*readers(process.pid), *reading_children(process.pid)]
        assert len(started) == 2
        process.kill()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "they have ended")
        sent.leave()
