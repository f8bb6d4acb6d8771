"""Concurrent callers, disconnecting callers, and an event loop that is never blocked."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from numpy.testing import assert_allclose
from structlog.testing import capture_logs

from api.text_process import body_reader
from jobs.store.database import Database
from public_api.paths import RECEIPT_KEYS
from scoring.tokenizing.tokenization import TextTokenizer
from tests.api.every_route import BODY, OPERATIONS, Operation, job_for, request
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import quick_on

Fresh = tuple[RunningApi, StandInWorker]

CALLERS = 200


@quick_on("postgres")
def test_each_of_two_hundred_concurrent_calls_gets_its_own_scores(fresh: Fresh, model: TinyModel) -> None:
    api, _ = fresh
    everybody = threading.Barrier(CALLERS)
    limits = httpx2.Limits(max_connections=CALLERS)
    with httpx2.Client(base_url=api.url, limits=limits, timeout=60) as client, ThreadPoolExecutor(CALLERS) as pool:

        def call(n: int) -> Any:
            everybody.wait(30)
            body = {"query": f"Query {n % 7}", "items": [f" item {n}", ""], "label_token_ids": [70 + n % 3, 80]}
            return client.post("/v1/score", json=body)

        answers = list(pool.map(call, range(CALLERS)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == CALLERS
    for n, answer in enumerate(answers):
        expected = model.text_scores(f"Query {n % 7}", [f" item {n}", ""], [70 + n % 3, 80])
        assert_allclose(answer.json()["scores"], expected, rtol=1e-6)
    assert api.app.state.service.waiters.job_ids == []


WITHOUT_DATABASE = ("/", "/livez", "/v1/tokenize", RECEIPT_KEYS)


@pytest.mark.parametrize(
    "operation",
    [operation for operation in OPERATIONS if operation.path not in WITHOUT_DATABASE],
    ids=lambda operation: f"{operation.method} {operation.path}",
)
def test_a_slow_database_does_not_block_the_event_loop(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    job_id = job_for(api, operation)
    service = api.app.state.service
    monkeypatch.setattr(
        service.acceptance.doors.default.compatibility, "shared", service.acceptance.doors.default.compatibility.current
    )
    monkeypatch.setattr(
        service.probes.readiness, "_seconds", -1.0
    )  # nothing that was found a moment before is an answer
    vars(service.probes.readiness)["_found"] = None
    _answers_meanwhile(api, monkeypatch, Database, ("read", "write"), operation, job_id)


@pytest.mark.parametrize(
    "operation",
    [operation for operation in OPERATIONS if operation.body is not None],
    ids=lambda operation: f"{operation.method} {operation.path}",
)
def test_slow_tokenising_does_not_block_the_event_loop(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    monkeypatch.setattr(body_reader, "SMALL_BYTES", 0)  # no body is so small that it is read on the event loop
    _answers_meanwhile(api, monkeypatch, TextTokenizer, ("encode", "row_encoder", "encode_items_first"), operation, "")


def _answers_meanwhile(
    api: RunningApi,
    monkeypatch: pytest.MonkeyPatch,
    owner: type[Any],
    methods: tuple[str, ...],
    operation: Operation,
    job_id: str,
) -> None:
    """Block a request in some methods of a class, and check that another request is answered meanwhile."""
    blocked, go_on = threading.Event(), threading.Event()
    answers: list[httpx2.Response] = []
    sender = threading.Thread(target=lambda: answers.append(request(api, operation, job_id)))

    def held(method: Any) -> Any:
        def wait(*args: Any, **kwargs: Any) -> Any:
            blocked.set()
            assert go_on.wait(20)
            return method(*args, **kwargs)

        return wait

    for name in methods:
        monkeypatch.setattr(owner, name, held(getattr(owner, name)))
    try:
        sender.start()
        assert blocked.wait(10)
        assert sender.is_alive()
        with httpx2.Client(base_url=api.url, timeout=5) as other:
            assert other.get("/livez").status_code == 200
        assert answers == []
    finally:
        go_on.set()
        sender.join(20)
    assert [answer.status_code for answer in answers] == [operation.status]


def test_a_disconnecting_caller_cancels_its_job(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()
    with capture_logs() as logs:
        connection, job_id = _call_and_hang(api, {})
        connection.close()
        eventually(lambda: [entry for entry in logs if entry.get("path") == "/v1/score"], "the call is logged")
    counted = 'scoreline_jobs_ended_total{status="cancelled"} 1.0'
    assert counted in api.client.get("/metrics").text, "before anybody reads the job"
    assert api.client.get(f"/v1/jobs/{job_id}").json()["status"] == "cancelled"
    assert api.app.state.service.waiters.job_ids == []
    assert [entry["status"] for entry in logs if entry.get("path") == "/v1/score"] == [499]


def test_a_disconnecting_reader_ends_its_wait_and_not_the_job(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()
    job = api.submit(**BODY)
    waiters = api.app.state.service.waiters
    with socket.create_connection(("127.0.0.1", int(api.url.rpartition(":")[2]))) as connection:
        connection.sendall(f"GET {job['urls']['self']} HTTP/1.1\r\nhost: localhost\r\nprefer: wait=60\r\n\r\n".encode())
        eventually(lambda: waiters.job_ids, "the reader waits")
    eventually(lambda: not waiters.job_ids, "no request waits any more")
    assert api.client.get(job["urls"]["self"]).json()["status"] == "queued"


def test_a_call_with_an_idempotency_key_survives_its_disconnecting_caller(fresh: Fresh, model: TinyModel) -> None:
    api, worker = fresh
    worker.gate.clear()
    key = {"Idempotency-Key": "come-back"}
    connection, job_id = _call_and_hang(api, key)
    connection.close()
    eventually(lambda: not api.app.state.service.waiters.job_ids, "the disconnect is noticed")
    assert api.client.get(f"/v1/jobs/{job_id}").json()["status"] == "queued"
    worker.gate.set()
    headers = key | {"content-type": "application/json"}
    answer = api.client.post("/v1/score", content=json.dumps(BODY), headers=headers)
    assert (answer.status_code, answer.json()["id"]) == (200, job_id)
    assert answer.headers["idempotency-replayed"] == "true"


def _call_and_hang(api: RunningApi, headers: dict[str, str]) -> tuple[socket.socket, str]:
    """Send a call without reading its answer. Returns the connection and the id of the job."""
    body = json.dumps(BODY).encode()
    lines = [
        "POST /v1/score HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection = socket.create_connection(("127.0.0.1", int(api.url.rpartition(":")[2])))
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    waiters = api.app.state.service.waiters
    eventually(lambda: waiters.job_ids, "the call waits")
    return connection, waiters.job_ids[0]


def test_a_client_that_disconnects_within_its_body_affects_no_other_request(api: RunningApi) -> None:
    connection = socket.create_connection(("127.0.0.1", int(api.url.rpartition(":")[2])))
    connection.sendall(
        b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
    )
    connection.close()
    assert api.client.get("/livez").status_code == 200


def test_a_notice_between_the_commit_and_the_wait_is_not_lost(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    """Polling is rare here, so only notices can end these waits in time."""
    with running_api(model.directory, sqlite_url, tmp_path, waiter_poll_seconds=1000.0) as (api, _):
        eventually(lambda: api.score(**BODY | {"timeout": 2}), "the worker is connected")
        for n in range(50):
            assert api.score(**BODY | {"query": f"Query {n}", "timeout": 10})["scores"]


def test_a_call_whose_job_has_already_ended_is_answered_at_once(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    """An end is announced once and polling is rare here, so a wait for it would time out."""
    with running_api(model.directory, sqlite_url, tmp_path, waiter_poll_seconds=1000.0) as (api, _):
        started = time.monotonic()
        assert api.score(**BODY | {"items": []})["scores"] == []
        headers = {"Idempotency-Key": "again"}
        first = api.client.post("/v1/score", json=BODY, headers=headers)
        # Now this process is like one that was restarted: it does not know of the end.
        api.app.state.service.waiters._ended._counted.clear()
        assert api.client.post("/v1/score", json=BODY, headers=headers).json() == first.json()
        assert time.monotonic() - started < 10
