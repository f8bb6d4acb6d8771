"""The budget for what comes in: how much of it a process holds at the same time, in all and of each tenant."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from api.budget import RETRY_SECONDS, Kind, Use
from api.requests.calls import read_call
from jobs.store.database import Database
from jobs.tenancy.keys import PREFIX, StoredKey, find_key
from jobs.tenancy.tenants import DEFAULT_TENANT
from tests.api.every_route import BODY
from tests.api.requests.raw_requests import JSON, begin, begin_body, begin_json, head_of, key_of
from tests.api.requests.uploads.uploading import FIRST, LINES
from tests.api.server.raw_client import Answer, RawClient
from tests.api.serving import UNKNOWN_KEY, RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel


def by_tenant(use: Use) -> dict[str, int]:
    """The use of a process, by tenant."""
    return use._by_tenant


LIMITS: dict[str, Any] = {
    "max_open_requests": 6,
    "max_open_requests_per_tenant": 3,
    "max_waiting_key_lookups": 2,
    "max_open_streams": 4,
    "max_open_streams_per_tenant": 2,
    "max_open_uploads": 4,
    "max_open_uploads_per_tenant": 2,
    "max_body_bytes": 120_000,
    "max_buffered_body_bytes": 420_000,
    "max_buffered_body_bytes_per_tenant": 220_000,
}

CALL = BODY | {"timeout": 60}


class Limited:
    """A server with small limits, the tenants that call it, and the connections that a test opens."""

    def __init__(self, api: RunningApi, worker: StandInWorker) -> None:
        self.api = api
        self.worker = worker
        self.keys = [key_of(api, tenant) for tenant in ("acme", "bolt", "coil")]
        self.budget = api.budget
        self.requests: list[RawClient] = []

    def call(self, tenant: int = 0) -> RawClient:
        """Begin a call of `/v1/score`, which waits while the worker does not work."""
        return self.opened(begin_json(self.api, "/v1/score", CALL, self.keys[tenant]))

    def get(self, path: str, tenant: int = 0, **headers: str) -> RawClient:
        return self.opened(begin(self.api, f"GET {path}", headers, key=self.keys[tenant]))

    def upload(self, tenant: int = 0) -> RawClient:
        """Begin an upload that goes on."""
        headers = {**LINES, "Content-Length": "1000"}
        return self.opened(begin(self.api, "POST /v1/jobs", headers, FIRST, self.keys[tenant]))

    def body(self, sent: int, declared: int = 120_000, tenant: int = 0) -> RawClient:
        """Begin a JSON body of which not all is sent."""
        return self.opened(begin_body(self.api, "/v1/score", declared, b" " * sent, self.keys[tenant]))

    def opened(self, request: RawClient) -> RawClient:
        self.requests.append(request)
        return request

    def holds(self, requests: int = 0, streams: int = 0, uploads: int = 0, body_bytes: int = 0) -> None:
        """Wait until the process holds exactly this, and knows whose it is."""
        expected = [requests, streams, uploads, body_bytes]

        shares = [*self.budget.open.values(), self.budget.held_bytes]

        def held() -> bool:
            of_tenants = [sum(by_tenant(share.used).values()) for share in shares]
            return [share.used.total for share in shares] == of_tenants == expected

        eventually(held, f"{expected} is held")

    def metrics(self) -> dict[str, float]:
        """Return the samples of the metrics that tell of limits."""
        families = text_string_to_metric_families(self.api.client.get("/metrics").text)
        return {
            ",".join((sample.name, *sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }

    def close(self) -> None:
        """Close all connections, after which nothing is held any more."""
        for request in self.requests:
            request.close()
        self.requests.clear()
        self.worker.gate.set()
        self.holds()


@pytest.fixture(scope="module")
def server(model: TinyModel, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    folder = tmp_path_factory.mktemp("budget")
    path = folder / "scoreline.db"
    shutil.copy(sqlite_template, path)
    with running_api(model.directory, f"sqlite:///{path}", folder, **LIMITS) as (api, worker):
        assert worker is not None
        yield Limited(api, worker)


@pytest.fixture
def limited(server: Limited) -> Iterator[Limited]:
    """The server, whose worker does not work."""
    server.worker.gate.clear()
    yield server
    server.close()


def refused(answer: Answer, status: int, code: str, limit: str, limited: Limited) -> None:
    """Check a refusal by the budget."""
    assert (answer.status, answer.code) == (status, code), answer
    least, greatest = RETRY_SECONDS
    assert least <= int(answer.headers["retry-after"]) <= greatest
    assert str(LIMITS[limit]) in json.loads(answer.body)["error"]["message"]
    assert limited.metrics()[f"scoreline_refused_requests_total,{limit}"] >= 1


def test_a_tenant_can_hold_so_many_requests_open_and_another_is_served_meanwhile(limited: Limited) -> None:
    calls = [limited.call() for _ in range(3)]
    limited.holds(requests=3)
    refused(limited.call().answer(), 429, "too_many_open_requests", "max_open_requests_per_tenant", limited)
    assert limited.get("/v1/jobs", tenant=1).answer().status == 200
    limited.worker.gate.set()
    assert [call.answer().status for call in calls] == [200] * 3
    limited.holds()
    assert limited.call().answer().status == 200


def test_all_tenants_together_can_hold_so_many_requests_open_and_health_is_told_meanwhile(limited: Limited) -> None:
    for tenant in (0, 1):
        for _ in range(3):
            limited.call(tenant)
    limited.holds(requests=6)
    for request in (limited.call(tenant=2), begin(limited.api, "GET /v1/jobs", key=UNKNOWN_KEY)):
        refused(request.answer(), 503, "overloaded", "max_open_requests", limited)
    for path in ("/livez", "/readyz", "/metrics"):
        assert limited.get(path).answer().status == 200
    assert limited.metrics()["scoreline_open_requests,request"] == 6


def test_strangers_who_invent_keys_do_not_take_the_places_of_known_tenants(
    limited: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-ups of their keys hang, and yet only some of their requests stay open."""
    assert limited.get("/v1/jobs").answer().status == 200
    go_on = threading.Event()

    def find_slowly(store: Database, key_id: str) -> StoredKey | None:
        assert not key_id.startswith("stranger") or go_on.wait(20)
        return find_key(store, key_id)

    def stranger(letter: str) -> RawClient:
        key = f"{PREFIX}strangeraaaaaaa{letter}_" + "a" * 52
        return limited.opened(begin(limited.api, "GET /v1/jobs", key=key))

    monkeypatch.setattr("api.callers.authentication.find_key", find_slowly)
    held = [stranger(letter) for letter in "abcde"]
    eventually(lambda: limited.budget.open[Kind.REQUEST].used.total == 5, "three are looked up and two wait")
    assert [stranger(letter).answer().code for letter in "fgh"] == ["overloaded"] * 3
    assert limited.get("/v1/jobs").answer().status == 200
    go_on.set()
    assert [stranger.answer().code for stranger in held] == ["invalid_api_key"] * 5
    assert limited.metrics()["scoreline_refused_requests_total,max_waiting_key_lookups"] == 3


@pytest.mark.parametrize("kind", ["streams", "uploads"])
def test_streams_and_uploads_have_places_of_their_own(limited: Limited, kind: str) -> None:
    job_id = limited.api.client_with(limited.keys[0]).post("/v1/jobs", json=BODY).json()["id"]
    other_id = limited.api.client_with(limited.keys[1]).post("/v1/jobs", json=BODY).json()["id"]
    last_id = limited.api.client_with(limited.keys[2]).post("/v1/jobs", json=BODY).json()["id"]

    def opened(tenant: int) -> RawClient:
        if kind == "uploads":
            return limited.upload(tenant)
        return limited.get(f"/v1/jobs/{(job_id, other_id, last_id)[tenant]}", tenant, Prefer="wait=60")

    for _ in range(3):
        limited.call()
    for tenant in (0, 0, 1, 1):
        opened(tenant)
    limited.holds(requests=3, **{kind: 4})
    refused(opened(2).answer(), 503, "overloaded", f"max_open_{kind}", limited)
    limited.requests[3].close()
    limited.holds(requests=3, **{kind: 3})
    refused(opened(1).answer(), 429, "too_many_open_requests", f"max_open_{kind}_per_tenant", limited)
    opened(2)
    limited.holds(requests=3, **{kind: 4})
    assert limited.metrics()[f"scoreline_open_requests,{kind.removesuffix('s')}"] == 4


def test_scores_as_json_lines_hold_the_place_of_a_stream_until_the_last_line(
    limited: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited.worker.gate.set()
    job_id = json.loads(limited.call().answer().body)["id"]
    go_on = threading.Event()
    monkeypatch.setattr("api.routes.jobs.encode_lines", lambda _: go_on.wait(20) and b"{}\n")
    reader = limited.get(f"/v1/jobs/{job_id}/scores", Accept="application/x-ndjson")
    limited.holds(streams=1)
    go_on.set()
    assert reader.answer().body == b"{}\n"
    limited.holds()


def test_unfinished_bodies_hold_no_more_memory_than_their_budget(limited: Limited) -> None:
    """Fifteen clients declare 120,000 bytes, send 100,000 of them and nothing more."""
    codes: list[str] = []
    for tenant in range(3):
        for n in range(5):
            body = limited.body(100_000, tenant=tenant)
            if tenant < 2 and n < 2:
                bodies = 2 * tenant + n + 1
                limited.holds(requests=bodies, body_bytes=bodies * 100_000)
            else:
                codes.append(body.answer().code)
    assert codes == ["too_many_open_requests"] * 6 + ["overloaded"] * 5
    limited.holds(requests=4, body_bytes=400_000)
    metrics = limited.metrics()
    assert metrics["scoreline_buffered_body_bytes"] == 400_000
    assert metrics["scoreline_refused_requests_total,max_buffered_body_bytes_per_tenant"] >= 6
    assert metrics["scoreline_refused_requests_total,max_buffered_body_bytes"] >= 5


def test_a_body_of_no_declared_length_is_refused_when_its_bytes_find_no_room(limited: Limited) -> None:
    limited.body(100_000)
    limited.holds(requests=1, body_bytes=100_000)
    headers = {**JSON, "Transfer-Encoding": "chunked"}
    chunked = limited.opened(begin(limited.api, "POST /v1/score", headers, b"", limited.keys[0]))
    chunked.send(b"186a0\r\n" + b" " * 100_000 + b"\r\n")
    limited.holds(requests=2, body_bytes=200_000)
    limited.body(19_999, declared=20_000)
    limited.holds(requests=3, body_bytes=219_999)
    chunked.send(b"2\r\n  \r\n")
    answer = chunked.answer()
    refused(answer, 429, "too_many_open_requests", "max_buffered_body_bytes_per_tenant", limited)
    limited.holds(requests=2, body_bytes=119_999)


def test_bodies_of_one_tenant_leave_room_for_those_of_another(limited: Limited) -> None:
    for _ in range(2):
        limited.body(100_000)
    limited.holds(requests=2, body_bytes=200_000)
    # There is no room for the declared length, so the body is refused before it is sent.
    answer = limited.body(0).answer()
    refused(answer, 429, "too_many_open_requests", "max_buffered_body_bytes_per_tenant", limited)
    limited.body(100_000, tenant=1)
    limited.holds(requests=3, body_bytes=300_000)
    limited.worker.gate.set()
    assert limited.call(tenant=1).answer().status == 200


def test_a_declared_length_takes_no_room_from_others(limited: Limited) -> None:
    for _ in range(2):
        limited.body(0)
    limited.holds(requests=2)
    limited.worker.gate.set()
    assert limited.call().answer().status == 200


def test_a_body_is_held_until_it_is_read_and_no_longer(limited: Limited, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that wait for a thread count. The calls that they make wait for a worker without them."""
    blocked, go_on = threading.Semaphore(0), threading.Event()

    def wait_and_read(*arguments: Any) -> Any:
        blocked.release()
        assert go_on.wait(20)
        return read_call(*arguments)

    monkeypatch.setattr("api.routes.score.read_call", wait_and_read)
    monkeypatch.setattr("api.text_process.body_reader.SMALL_BYTES", 0)  # small bodies, too, wait for a thread
    for _ in range(2):
        limited.call()
    size = len(json.dumps(CALL).encode())
    assert blocked.acquire(timeout=20)
    limited.holds(requests=2, body_bytes=2 * size)
    go_on.set()
    limited.holds(requests=2)


def answered(limited: Limited) -> None:
    limited.worker.gate.set()
    assert limited.call().answer().status == 200


def refused_in_its_body(limited: Limited) -> None:
    limited.body(2, declared=2).answer()


def broken_off_in_its_body(limited: Limited) -> None:
    request = limited.body(100_000)
    limited.holds(requests=1, body_bytes=100_000)
    request.close()


def too_large_without_a_declared_length(limited: Limited) -> None:
    chunk = b"1d4c0\r\n" + b" " * 120_000 + b"\r\n" + b"2710\r\n" + b" " * 10_000 + b"\r\n"
    headers = {**JSON, "Transfer-Encoding": "chunked"}
    request = begin(limited.api, "POST /v1/score", headers, chunk, limited.keys[0])
    assert request.answer().status == 413


def left_while_it_waits(limited: Limited) -> None:
    request = limited.call()
    limited.holds(requests=1)
    request.close()


def left_while_it_streams(limited: Limited) -> None:
    job_id = limited.api.client_with(limited.keys[0]).post("/v1/jobs", json=BODY).json()["id"]
    request = limited.get(f"/v1/jobs/{job_id}", Prefer="wait=60")
    limited.holds(streams=1)
    request.close()


def left_while_it_uploads(limited: Limited) -> None:
    request = limited.upload()
    limited.holds(uploads=1)
    request.close()


def an_unauthenticated_one(limited: Limited) -> None:
    assert begin_json(limited.api, "/v1/score", CALL, key=UNKNOWN_KEY).answer().status == 401


def an_internal_error(limited: Limited) -> None:
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setattr("api.routes.score.read_call", lambda *_: 1 / 0)
        assert limited.call().answer().status == 500


@pytest.mark.parametrize(
    "ends",
    [
        answered,
        refused_in_its_body,
        broken_off_in_its_body,
        too_large_without_a_declared_length,
        left_while_it_waits,
        left_while_it_streams,
        left_while_it_uploads,
        an_unauthenticated_one,
        an_internal_error,
    ],
)
def test_a_request_gives_everything_back_however_it_ends(limited: Limited, ends: Callable[[Limited], None]) -> None:
    for _ in range(4):  # more than one tenant may hold
        ends(limited)
        limited.holds()
    assert by_tenant(limited.budget.held_bytes.used) == {}
    assert all(by_tenant(share.used) == {} for share in limited.budget.open.values())


@pytest.mark.slow
def test_by_default_a_tenant_may_have_256_calls_and_1000_streams_open(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    """They all come at the same moment, when not even the key of their tenant is known."""
    with running_api(model.directory, sqlite_url, tmp_path) as (api, worker):
        assert worker is not None
        worker.gate.clear()
        job_id = api.submit(**BODY)["id"]
        key = key_of(api, DEFAULT_TENANT)
        clients = [RawClient(api) for _ in range(1_256)]
        content = json.dumps(CALL).encode()
        call = head_of("POST /v1/score", {**JSON, "Content-Length": str(len(content))}, key) + content
        wait = head_of(f"GET /v1/jobs/{job_id}", {"Prefer": "wait=60"}, key)
        for n, client in enumerate(clients):
            client.send(call if n < 256 else wait)
        budget = api.budget
        eventually(lambda: [budget.open[kind].used.total for kind in Kind] == [256, 1_000, 0], "all of them wait")
        worker.gate.set()
        assert {client.answer().status for client in clients} == {200}
        for client in clients:
            client.close()
        assert "scoreline_refused_requests_total{" not in api.client.get("/metrics").text
