"""A server that is told to stop while requests wait for jobs: what they get, and what becomes of the jobs."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx2

from jobs.queue.read import get_job
from jobs.store.records import JobStatus
from jobs.tenancy.tenants import DEFAULT_TENANT
from tests.api.serving import RunningApi, eventually, running_api
from tests.api.tiny_model import TinyModel

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is", ""], "label_token_ids": [70, 71]}
RANKING: dict[str, Any] = {"query": "plants", "documents": ["Water the fern.", "The train leaves."]}


class Asking(threading.Thread):
    """A client that waits for the answer to one request."""

    def __init__(self, api: RunningApi, method: str, path: str, **options: Any) -> None:
        super().__init__(daemon=True)
        self._client = api.client_with(None)
        self._request = (method, path, options)
        self._answer: httpx2.Response | None = None
        waiters, before = api.app.state.service.waiters, set(api.app.state.service.waiters.job_ids)
        self.start()
        eventually(lambda: set(waiters.job_ids) - before, "the request waits")
        (self.job_id,) = set(waiters.job_ids) - before

    def run(self) -> None:
        method, path, options = self._request
        with self._client as client:
            self._answer = client.request(method, path, **options)

    def answer(self) -> httpx2.Response:
        """Return the answer when it has come."""
        self.join(20)
        assert self._answer is not None
        return self._answer


def tell_to_stop(api: RunningApi) -> None:
    """Return when the server has begun to stop: it accepts no further connection."""
    api.tell_to_stop()

    def is_closed() -> bool:
        try:
            socket.create_connection(("127.0.0.1", int(api.url.rpartition(":")[2]))).close()
        except ConnectionRefusedError:
            return True
        return False

    eventually(is_closed, "the server accepts no connections")


def test_calls_get_their_scores_from_a_server_that_stops(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    with running_api(model.directory, sqlite_url, tmp_path) as (api, worker):
        assert worker is not None
        worker.gate.clear()
        calls = [
            Asking(api, "POST", "/v1/score", json=BODY),
            Asking(api, "POST", "/v1/score", json=BODY | {"on_timeout": "cancel"}),
            Asking(api, "POST", "/v1/rerank", json=RANKING),
        ]
        tell_to_stop(api)
        worker.gate.set()
        assert [call.answer().status_code for call in calls] == [200] * 3


def test_calls_that_a_server_can_not_finish_are_to_be_repeated_and_those_with_a_key_find_their_job(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    keys = [{"Idempotency-Key": name} for name in ("score", "cancel", "rerank")]
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/score", BODY),
        ("/v1/score", BODY | {"on_timeout": "cancel"}),
        ("/v1/rerank", RANKING),
    ]
    with running_api(model.directory, sqlite_url, tmp_path, shutdown_seconds=3) as (api, worker):
        assert worker is not None
        worker.gate.clear()
        calls = [
            Asking(api, "POST", path, json=body, headers=key) for (path, body), key in zip(requests, keys, strict=True)
        ]
        without_key = Asking(api, "POST", "/v1/score", json=BODY)
        tell_to_stop(api)
        answers = [call.answer() for call in (*calls, without_key)]
    for answer, call in zip(answers, (*calls, without_key), strict=True):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_stopping")
        assert answer.json()["error"]["job_id"] == call.job_id
        assert answer.headers["retry-after"] == "1"
        assert "x-should-retry" not in answer.headers
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False) as (api, _):
        database = api.app.state.service.store.database
        assert [get_job(database, DEFAULT_TENANT, call.job_id).status for call in calls] == [JobStatus.QUEUED] * 3
        assert get_job(database, DEFAULT_TENANT, without_key.job_id).status is JobStatus.CANCELLED
        worker = api.worker()
        worker.start()
        try:
            for (path, body), key, call in zip(requests, keys, calls, strict=True):
                again = api.client.post(path, json=body, headers=key)
                assert (again.status_code, again.json()["id"]) == (200, call.job_id)
                assert again.headers["idempotency-replayed"] == "true"
        finally:
            worker.stop()


def test_a_server_that_drains_is_not_ready_and_takes_requests_whose_answers_end_their_connections(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, drain_seconds=600) as (api, _):
        assert api.client.get("/readyz").status_code == 200
        api.tell_to_stop()
        eventually(lambda: api.client.get("/readyz").status_code == 503, "the server is not ready")
        for path in ("/livez", "/readyz", "/health"):
            refused = api.client.get(path)
            assert (refused.json()["error"]["code"], refused.headers["retry-after"]) == ("server_stopping", "1")
        for _again in range(2):
            answer = api.client.post("/v1/score", json=BODY)
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        # A connection is open whose request has not come yet when the server stops listening.
        with socket.create_connection(("127.0.0.1", int(api.url.rpartition(":")[2]))) as late:
            api.end_draining()
            tell_to_stop(api)
            late.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert late.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_a_server_that_nobody_stands_in_for_says_to_the_end_that_it_stops(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, is_alone=True) as (api, worker):
        assert worker is not None
        worker.gate.clear()
        call = Asking(api, "POST", "/v1/score", json=BODY)
        api.tell_to_stop()
        eventually(lambda: httpx2.get(f"{api.url}/livez").status_code == 503, "the server refuses requests")
        refused = httpx2.post(f"{api.url}/v1/score", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_stopping")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        worker.gate.set()
        assert call.answer().status_code == 200


def test_who_asks_how_a_job_stands_is_told_at_once_and_keeps_no_server_from_stopping(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, shutdown_seconds=60) as (api, _):
        job_id = api.submit(**BODY)["id"]
        asking = Asking(api, "GET", f"/v1/jobs/{job_id}", headers={"Prefer": "wait=60"})
        events = Following(api, job_id)
        began = time.monotonic()
        api.tell_to_stop()
        assert json.loads(asking.answer().content)["status"] == "queued"
        assert events.end() == ["progress"]
        api.stop()
        assert time.monotonic() - began < 10


class Following(threading.Thread):
    """A client that follows the events of a job until their stream ends."""

    def __init__(self, api: RunningApi, job_id: str) -> None:
        super().__init__(daemon=True)
        self._api, self._job_id = api, job_id
        self._events: list[str] = []
        self._has_ended = False
        self.start()
        eventually(lambda: self._events, "the stream begins")

    def run(self) -> None:
        with self._api.client_with(None) as client, client.stream("GET", f"/v1/jobs/{self._job_id}/events") as answer:
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    self._events.append(line.removeprefix("event: "))
        self._has_ended = True

    def end(self) -> list[str]:
        """Return the names of the events when the stream has ended in good order."""
        self.join(20)
        assert self._has_ended
        return self._events
