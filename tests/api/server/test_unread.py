"""What comes of a body that nothing reads, and what a client does not read of its answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.server.refusals import UNREAD_BYTES
from api.server.unread_answers import READ_BYTES_PER_SECOND, UnreadAnswers
from scoring.layout import ChunkWork, GroupWork, LabelScores, ScoredChunk
from tests.api.server.raw_client import RawClient, connection_of, head, refused
from tests.api.serving import KEY, RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel

Running = tuple[RunningApi, StandInWorker]
ROOM = 3_500_000
BODY = {"query": [70], "items": [[]] * 400, "label_token_ids": list(range(70, 270)), "return_logits": True}


@pytest.fixture
def running(model: TinyModel, sqlite_template: Path, tmp_path: Path) -> Iterator[Running]:
    """A server that keeps little for a tenant, and its worker."""
    path = tmp_path / "scoreline.db"
    shutil.copy(sqlite_template, path)
    room = {"max_buffered_body_bytes": 2 * ROOM, "max_buffered_body_bytes_per_tenant": ROOM}
    settings: dict[str, Any] = {**room, "event_heartbeat_seconds": 0.1}
    with running_api(model.directory, f"sqlite:///{path}", tmp_path, **settings) as (api, worker):
        assert worker is not None
        yield api, worker


def made_up(group: GroupWork, chunk: ChunkWork) -> ScoredChunk:
    """Score a chunk without computing anything."""
    values = np.random.default_rng(1).random((len(chunk.rows), len(chunk.label_token_ids)), np.float32)
    return ScoredChunk(chunk.id, LabelScores(values, values - 2), cached_tokens=0)


def following(api: RunningApi, *headers: str) -> bytes:
    """Return the head of a request that follows a job which does not end."""
    job = api.submit(query=[70], items=[[]], label_token_ids=[70])
    return head(f"authorization: Bearer {KEY}", *headers, line=f"GET /v1/jobs/{job['id']}/events HTTP/1.1")


def test_an_endless_body_that_no_route_reads_is_dropped_and_ends_its_connection(running: Running) -> None:
    api, worker = running
    worker.gate.clear()
    before = refused(api, "unread_bytes")
    with RawClient(api) as client:
        client.send(following(api, "content-length: 99999999999"))
        connection = connection_of(api, client)
        eventually(lambda: connection._dropped_bytes, "the route follows the job")
        # A request whose answer has not begun would be answered with a 413, which counts as a refusal.
        eventually(lambda: connection.cycle is not None and connection.cycle.response_started, "the stream begins")
        client.send(b"0" * (UNREAD_BYTES - 1))
        eventually(lambda: connection._dropped_bytes == UNREAD_BYTES, "the bytes are dropped")
        assert api.budget.held_bytes.used.total == 0
        client.send(b"00")
        eventually(lambda: connection.transport.is_closing(), "the connection is closed")
    worker.gate.set()
    eventually(lambda: refused(api, "unread_bytes") == before, "a stream that has begun has no other answer")


def test_a_long_body_of_a_request_that_only_waits_is_answered_with_413(running: Running) -> None:
    api, worker = running
    worker.gate.clear()
    job = api.submit(query=[70], items=[[]], label_token_ids=[70])
    line = f"GET /v1/jobs/{job['id']} HTTP/1.1"
    with RawClient(api) as client:
        client.send(head(f"authorization: Bearer {KEY}", "prefer: wait=60", "content-length: 9999999", line=line))
        eventually(lambda: api.app.state.service.waiters.job_ids, "the request waits")
        client.send(b"0" * (2 * UNREAD_BYTES))
        answer = client.answer()
        assert (answer.status, answer.code) == (413, "request_too_large")
        assert client.is_closed()
    eventually(lambda: not api.app.state.service.waiters.job_ids, "it waits no more")


def test_bodies_that_are_sent_ahead_count_and_are_few(running: Running) -> None:
    api, worker = running
    worker.gate.clear()
    with RawClient(api) as client:
        client.send(following(api))
        connection = connection_of(api, client)
        eventually(lambda: connection.cycle is not None and connection.cycle.response_started, "the stream begins")
        ahead = head("content-length: 999999", "content-type: application/json", line="POST /v1/score HTTP/1.1")
        client.send(ahead, b"0" * 1_000)
        eventually(lambda: api.budget.held_bytes.used.total == 1_000, "they count")
        client.send(b"0" * UNREAD_BYTES)
        eventually(lambda: connection._refusal is not None, "they are refused")
        eventually(lambda: api.budget.held_bytes.used.total == 0, "and no longer kept")
    worker.gate.set()


def test_answers_that_nobody_reads_count_and_leave_no_room_for_more(running: Running) -> None:
    api, worker = running
    worker.score_chunk = made_up
    content = json.dumps(BODY).encode()
    headers = (f"authorization: Bearer {KEY}", "content-type: application/json", f"content-length: {len(content)}")
    call = head(*headers, line="POST /v1/score HTTP/1.1") + content
    with RawClient(api, receive_buffer=4096) as silent, RawClient(api, receive_buffer=4096) as other:
        silent.send(call)
        eventually(lambda: api.budget.held_bytes.used.total > ROOM / 8, "an answer is kept")
        other.send(call)
        refusal = other.answer()
        assert (refusal.status, refusal.code) == (429, "too_many_open_requests")
        assert api.budget.held_bytes.used.total <= ROOM
        # An answer for which there is no room is refused before anything is computed.
        assert len(api.client.get("/v1/jobs?calls=true").json()["data"]) <= 1
        assert json.loads(silent.answer().body)["scores"]
    eventually(lambda: api.budget.held_bytes.used.total == 0, "everything is given back")


class _Transport:
    unread = 0

    def write(self, data: bytes) -> None:
        self.unread += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unread


class _Use:
    counted = 0

    def total(self) -> int:
        return self.counted

    def of(self, tenant: str) -> int:
        raise AssertionError

    def add(self, tenant: str | None, amount: int) -> None:
        self.counted += amount


@pytest.mark.parametrize(("share", "overdue"), [(0.0, True), (0.5, True), (1.5, False)])
def test_a_client_that_reads_too_slowly_is_overdue_however_regularly_it_reads(share: float, overdue: bool) -> None:
    transport, use = _Transport(), _Use()
    answers = UnreadAnswers(transport, use, 30.0)  # type: ignore[arg-type]
    answers.write(b"0" * 10_000_000)
    found = False
    for now in range(100):
        found |= answers.is_overdue(float(now), must_read=True)
        transport.unread -= int(share * READ_BYTES_PER_SECOND)
    answers.is_overdue(100.0, must_read=True)
    assert (found, use.counted) == (overdue, transport.unread)
    assert not answers.is_overdue(101.0, must_read=False)
    answers.forget()
    assert use.counted == 0
