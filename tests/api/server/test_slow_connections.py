"""A client that sends or reads too slowly loses its connection, and connections are limited in number."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from jobs.queue.read import read_scores
from jobs.store.database import Database
from jobs.store.records import ScorePage
from tests.api.every_route import BODY
from tests.api.server.raw_client import RawClient, connection_of, connections, head, refused
from tests.api.serving import Json, RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel

HEADER_SECONDS, SEND_SECONDS = 0.4, 0.4


@pytest.fixture(scope="module")
def impatient(
    model: TinyModel, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningApi, StandInWorker]]:
    """A server with short deadlines, and its worker."""
    folder = tmp_path_factory.mktemp("api")
    path = folder / "scoreline.db"
    shutil.copy(sqlite_template, path)
    running = running_api(
        model.directory, f"sqlite:///{path}", folder, header_seconds=HEADER_SECONDS, send_seconds=SEND_SECONDS
    )
    with pytest.MonkeyPatch.context() as patch, running as (api, worker):
        assert worker is not None
        patch.setattr("api.server.server.WATCH_TICKS", 1)
        yield api, worker


Impatient = tuple[RunningApi, StandInWorker]


def test_headers_that_do_not_become_complete_are_refused(impatient: Impatient) -> None:
    api, _ = impatient
    before = refused(api, "header_seconds")
    with RawClient(api) as fresh, RawClient(api) as used, RawClient(api) as lively:
        fresh.send(head("x-request-id: slow-1", "accept: */*")[:-2])
        used.send(head(), b"\r\nG")
        assert used.answer().status == 200
        for byte in head()[:-2]:
            lively.send(bytes([byte]))
        for client, request_id in ((fresh, "slow-1"), (used, None), (lively, None)):
            answer = client.answer()
            assert (answer.status, answer.code, answer.headers["connection"]) == (408, "request_timeout", "close")
            assert request_id in (None, answer.headers["x-request-id"])
            assert client.is_closed()
    assert refused(api, "header_seconds") == before + 3


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_a_connection_without_any_request_is_closed(impatient: Impatient, sent: bytes) -> None:
    api, _ = impatient
    before = refused(api, "header_seconds")
    with RawClient(api) as client:
        client.send(sent)
        assert client.is_closed()
    assert refused(api, "header_seconds") == before + 1


def test_a_connection_between_two_requests_is_not_held_to_the_time_for_headers(impatient: Impatient) -> None:
    api, _ = impatient
    with RawClient(api) as client:
        client.send(head())
        assert client.answer().status == 200
        assert connection_of(api, client)._deadline is None
        client.send(b"\r\n\r\n", head())
        assert client.answer().status == 200


def test_an_answer_in_progress_is_sent_before_the_next_request_is_refused(impatient: Impatient) -> None:
    api, worker = impatient
    worker.gate.clear()
    job = api.submit(**BODY)
    with RawClient(api) as client:
        before = refused(api, "header_seconds")
        waiting = head("prefer: wait=60", line=f"GET /v1/jobs/{job['id']} HTTP/1.1")
        client.send(waiting, b"GET /livez")
        eventually(lambda: connection_of(api, client)._refusal is not None, "the second request is refused")
        worker.gate.set()
        assert client.answer().status == 200
        assert client.answer().code == "request_timeout"
        assert client.is_closed()
    assert refused(api, "header_seconds") == before + 1


def test_the_head_of_a_request_that_began_before_an_answer_has_its_whole_time(
    impatient: Impatient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is not between two requests, so it is not closed as if it were."""
    api, worker = impatient
    monkeypatch.setattr(api._server.config, "timeout_keep_alive", HEADER_SECONDS / 10)
    worker.gate.clear()
    job = api.submit(**BODY)
    with RawClient(api) as client:
        client.send(head("prefer: wait=60", line=f"GET /v1/jobs/{job['id']} HTTP/1.1"))
        eventually(lambda: api.app.state.service.waiters.job_ids, "the first request waits")
        client.send(b"GET /livez")
        eventually(lambda: connection_of(api, client)._in_head, "the second request has begun")
        worker.gate.set()
        assert client.answer().status == 200
        assert client.answer().code == "request_timeout"
        assert client.is_closed()


def test_a_client_that_does_not_read_its_stream_loses_its_connection(
    impatient: Impatient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is larger than what the systems of both sides buffer, and its last pages are never read."""
    api, _ = impatient
    pages: list[int] = []

    def noted(database: Database, tenant: str, job_id: str, offset: int, limit: int) -> ScorePage:
        pages.append(offset)
        return read_scores(database, tenant, job_id, offset, limit)

    monkeypatch.setattr("api.routes.jobs.PAGE_ITEMS", 50)
    monkeypatch.setattr("api.routes.jobs.read_scores", noted)
    labels: Json = {"label_token_ids": list(range(70, 270)), "return_logits": True, "return_logprobs": True}
    job = api.wait(api.submit(query="The capital of", items=[""] * 800, **labels)["id"])
    assert job["status"] == "succeeded"
    before = refused(api, "send_seconds")
    path = f"/v1/jobs/{job['id']}/scores"
    with RawClient(api, receive_buffer=4096) as client, capture_logs() as logs:
        client.send(head("accept: application/x-ndjson", line=f"GET {path} HTTP/1.1"))
        eventually(lambda: [entry for entry in logs if entry.get("path") == path], "the request ends")
        assert client.socket.getsockname() not in {one.client for one in connections(api)}
    assert refused(api, "send_seconds") == before + 1
    assert 0 < len(pages) < 16


def test_a_client_that_goes_ends_each_of_its_requests(impatient: Impatient) -> None:
    api, worker = impatient
    worker.gate.clear()
    job = api.submit(**BODY)
    with RawClient(api) as client:
        client.send(head("prefer: wait=60", line=f"GET /v1/jobs/{job['id']} HTTP/1.1"), head())
        eventually(lambda: api.app.state.service.waiters.job_ids, "the first request waits")
    eventually(lambda: not api.app.state.service.waiters.job_ids, "nobody waits any more")
    worker.gate.set()


@pytest.mark.parametrize("body_bytes", [5_000_000, 5_000_001])
def test_a_client_that_sends_its_whole_body_first_can_read_an_early_answer(
    impatient: Impatient, body_bytes: int
) -> None:
    """The connection is to be closed after the answer. Closed on unread bytes, it would be reset."""
    api, _ = impatient
    with RawClient(api) as client:
        client.send(head("connection: close", "content-length: 5000001", line="POST /v1/score HTTP/1.1"))
        client.send(b"a" * body_bytes)
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (415, "close")
        assert client.is_closed()


@pytest.mark.parametrize("connection", ["connection: close", "connection: keep-alive"])
def test_a_body_that_goes_on_after_its_answer_is_not_received_for_ever(
    impatient: Impatient, monkeypatch: pytest.MonkeyPatch, connection: str
) -> None:
    monkeypatch.setattr("api.server.connection.DRAIN_SECONDS", 0.5)
    api, _ = impatient
    with RawClient(api) as client:
        client.send(head(connection, "content-length: 1000000000", line="POST /v1/score HTTP/1.1"))
        assert client.answer().status == 415
        eventually(lambda: cannot_send(client), "the connection is closed")


def test_a_connection_whose_body_was_answered_early_can_be_used_again(impatient: Impatient) -> None:
    api, _ = impatient
    with RawClient(api) as client:
        client.send(head("content-length: 200000", line="POST /v1/score HTTP/1.1"), b"a" * 100_000)
        assert client.answer().status == 415
        client.send(b"a" * 100_000, head())
        assert client.answer().status == 200
        eventually(lambda: all(len(one.cycle.body) == 0 for one in connections(api) if one.cycle), "no body is kept")


def test_further_connections_are_closed_at_once(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, max_connections=3) as (api, _):
        clients = [RawClient(api) for _ in range(3)]
        for client in clients:
            client.send(head())
            assert client.answer().status == 200
        with RawClient(api) as further:
            assert further.is_closed()
        clients.pop().close()
        eventually(lambda: len(connections(api)) == 2, "the server notices")
        with RawClient(api) as another:
            another.send(head(line="GET /metrics HTTP/1.1"))
            assert b'scoreline_refused_requests_total{limit="max_connections"} 1.0' in another.answer().body
        for client in clients:
            client.close()


def test_connections_in_every_state_do_not_hold_up_the_end(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False) as (api, _), capture_logs() as logs:
        job = api.submit(**BODY)
        _, partial, idle, garbled, waiting = clients = [RawClient(api) for _ in range(5)]
        partial.send(head()[:-2])
        idle.send(head())
        assert idle.answer().status == 200
        garbled.send(b"\0")
        assert garbled.answer().status == 400
        waiting.send(head("prefer: wait=60", line=f"GET /v1/jobs/{job['id']} HTTP/1.1"))
        eventually(lambda: api.app.state.service.waiters.job_ids, "a request waits")
        assert len(connections(api)) >= len(clients)
    assert waiting.answer().status == 200
    assert all(client.is_closed() for client in clients)
    assert not [entry for entry in logs if entry.get("log_level") == "error"]


def cannot_send(client: RawClient) -> bool:
    """Send some bytes. Returns whether the connection is closed."""
    try:
        client.send(b"a" * 1000)
    except ConnectionError:
        return True
    return False
