"""Several processes that serve one port: what they share, and what happens when one of them, or their parent, ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from jobs.store.database import Database
from jobs.tenancy.tenants import DEFAULT_TENANT, set_tenant
from settings.store import StoreSettings
from tests.api.processes.running import PROCESSES, SeveralProcesses, samples, several_processes
from tests.api.serving import DEADLINE_SECONDS, KEY, eventually
from tests.api.tiny_model import TinyModel
from tests.scoreline.running import gone
from tests.services import RedisServer, wait_until

BODY: dict[str, Any] = {"query": "Capital of", "items": [" France is"], "label_token_ids": [70]}
LIVEZ = "scoreline_http_requests_total method=GET route=/livez status=200"


@pytest.fixture(scope="module")
def shared(
    model: TinyModel, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SeveralProcesses]:
    """Two processes in embedded mode, whose requests look for ended jobs so rarely that only notices can wake them."""
    folder = tmp_path_factory.mktemp("several")
    shutil.copy(sqlite_template, folder / "scoreline.db")
    url = f"sqlite:///{folder / 'scoreline.db'}"
    settings = {"waiter_poll_seconds": 600, "max_open_streams_per_tenant": 2, "key_cache_seconds": 0.2}
    with several_processes(model.directory, url, folder, **settings) as api:
        yield api
        began = time.monotonic()
        assert api.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < 8.0
        assert not Path(api.bell_socket).exists()


@pytest.fixture
def clients(shared: SeveralProcesses) -> Iterator[dict[int, httpx2.Client]]:
    """A client of each process, by the number of the process."""
    found = shared.clients()
    yield found
    for client in found.values():
        client.close()


def wait_for_job(client: httpx2.Client, job_id: str, seconds: int = 10) -> httpx2.Response:
    return client.get(f"/v1/jobs/{job_id}", headers={"Prefer": f"wait={seconds}"})


class Waiting(threading.Thread):
    """Waits for a job with a client."""

    def __init__(self, client: httpx2.Client, job_id: str) -> None:
        super().__init__(daemon=True)
        self._client, self._job_id = client, job_id
        self.answer: httpx2.Response | None = None
        self.start()

    def run(self) -> None:
        with suppress(httpx2.TransportError):
            self.answer = wait_for_job(self._client, self._job_id, 60)

    def end(self) -> httpx2.Response:
        """Return the answer, which must come soon."""
        self.join(DEADLINE_SECONDS)
        assert self.answer is not None
        return self.answer


def test_the_end_of_a_job_is_heard_in_every_process_and_counted_once(
    shared: SeveralProcesses, clients: dict[int, httpx2.Client]
) -> None:
    one, other = clients[0], clients[1]
    before = samples(one).get("scoreline_jobs_ended_total status=succeeded", 0)
    job_id = one.post("/v1/jobs", json=BODY).json()["id"]
    further = shared.clients()
    waiting = [Waiting(client, job_id) for client in further.values()]
    eventually(lambda: samples(other)["scoreline_awaited_jobs"] == 2, "one request in each process waits")
    assert samples(one)["scoreline_open_requests kind=stream"] == 2
    worker = shared.worker()
    worker.start()
    try:
        assert [one.end().json()["status"] for one in waiting] == ["succeeded"] * 2
        assert other.post("/v1/score", json=BODY).status_code == 200, "its ring reaches the worker"
    finally:
        worker.stop()
    assert samples(one)["scoreline_jobs_ended_total status=succeeded"] == before + 2, "the job and the call"


def test_metrics_are_the_same_whichever_process_tells_them(
    shared: SeveralProcesses, clients: dict[int, httpx2.Client]
) -> None:
    before = samples(clients[0])[LIVEZ]
    for _ in range(3):
        for client in clients.values():
            client.get("/livez")
    # A process counts a request after it has answered.
    eventually(lambda: samples(clients[0])[LIVEZ] == before + 6, "all requests are counted")
    told = [samples(client) for client in clients.values()]
    assert [one[LIVEZ] for one in told] == [before + 6] * 2
    histogram = "scoreline_http_request_duration_seconds_count method=GET route=/livez"
    assert [one[histogram] for one in told] == [before + 6] * 2
    for number in range(2):
        assert all(one[f"scoreline_process_resident_memory_bytes process={number}"] > 0 for one in told)
    assert all(one["scoreline_database_up"] == 1 for one in told)


def test_each_process_has_its_part_of_a_limit(shared: SeveralProcesses, clients: dict[int, httpx2.Client]) -> None:
    job_id = clients[0].post("/v1/jobs", json=BODY).json()["id"]
    waiting = [Waiting(client, job_id) for client in shared.clients().values()]
    eventually(lambda: samples(clients[0])["scoreline_open_requests kind=stream"] == 2, "one request in each waits")
    for client in clients.values():
        refused = wait_for_job(client, job_id)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_open_requests")
    clients[1].post(f"/v1/jobs/{job_id}/cancel")
    assert {one.end().json()["status"] for one in waiting} == {"cancelled"}
    assert wait_for_job(clients[0], job_id).status_code == 200


def limit(database_url: str, requests_per_minute: int | None) -> None:
    store = Database.open(StoreSettings(database_url=database_url))
    set_tenant(store, DEFAULT_TENANT, requests_per_minute=requests_per_minute)
    store.close()


def test_when_a_process_is_killed_the_other_serves_and_a_new_one_goes_on_with_its_counters(
    shared: SeveralProcesses,
) -> None:
    clients = shared.clients()
    job_id = clients[1].post("/v1/jobs", json=BODY).json()["id"]
    waiting = Waiting(clients[1], job_id)
    eventually(lambda: samples(clients[0])["scoreline_awaited_jobs"] == 1, "a request waits in the process")
    counted = samples(clients[0])
    killed, serving = shared.children()[1], len(shared.logged("serving"))
    os.kill(killed, signal.SIGKILL)
    waiting.join(DEADLINE_SECONDS)
    assert waiting.answer is None, "its connection was cut"
    for _ in range(20):
        with httpx2.Client(base_url=shared.url, trust_env=False) as newcomer:
            assert newcomer.get("/livez").is_success
    assert samples(clients[0])["scoreline_open_requests kind=stream"] == 0, "what it held is given back"
    shared.wait_until_serving(serving + 1)
    (line,) = shared.logged("a process of the API has ended and is started again")
    assert (line["process"], line["status"], line["level"]) == (1, -signal.SIGKILL, "error")
    assert shared.children()[1] != killed
    for client in shared.clients().values():
        now = samples(client)
        assert now[LIVEZ] >= counted[LIVEZ] + 20
        assert {name: value for name, value in now.items() if name.startswith("scoreline_jobs_accepted")} == {
            name: value for name, value in counted.items() if name.startswith("scoreline_jobs_accepted")
        }
        assert client.get(f"/v1/jobs/{job_id}", headers={"Authorization": f"Bearer {KEY}"}).json()["status"] == "queued"


@pytest.mark.slow
def test_a_process_that_hangs_is_replaced_and_meanwhile_none_is_ready(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    with several_processes(model.directory, sqlite_url, tmp_path) as api:
        clients = api.clients()
        assert clients[0].get("/readyz").status_code == 200
        hanging = api.children()[1]
        os.kill(hanging, signal.SIGSTOP)
        eventually(lambda: clients[0].get("/readyz").status_code == 503, "its sibling tells load balancers")
        assert clients[0].get("/readyz").json()["error"]["message"].endswith("about to be replaced: 1")
        assert clients[0].get("/livez").status_code == 503
        api.wait_until_serving(PROCESSES + 1)
        (line,) = api.logged("a process of the API hangs and is ended")
        assert (line["process"], line["pid"], line["level"]) == (1, hanging, "error")
        assert gone([hanging])
        assert [client.get("/readyz").status_code for client in api.clients().values()] == [200, 200]


def test_a_port_that_is_taken_is_named_in_one_line(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        api = SeveralProcesses(model.directory, sqlite_url, tmp_path, port=port)
        assert api.parent.wait(DEADLINE_SECONDS) == 1
    (line,) = api.log()
    assert line["reason"].startswith(f"127.0.0.1 port {port} can't be used: Address already in use; name another")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "says"),
    [({"model": "/nowhere/at/all"}, "/nowhere/at/all"), ({"max_labels": "many"}, "SCORELINE_MAX_LABELS is")],
)
def test_what_keeps_one_process_from_starting_ends_all_and_is_said_once(
    model: TinyModel, sqlite_url: str, tmp_path: Path, settings: dict[str, str], says: str
) -> None:
    api = SeveralProcesses(model.directory, sqlite_url, tmp_path, **settings)
    assert api.parent.wait(DEADLINE_SECONDS) == 2
    (reason,) = [line["reason"] for line in api.log() if "reason" in line]
    assert says in reason
    assert api.children().keys() == {0}


@pytest.mark.slow
def test_when_the_parent_is_killed_its_children_end(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    with several_processes(model.directory, sqlite_url, tmp_path) as api:
        children = list(api.children().values())
        api.close()
        wait_until(lambda: gone(children), "the children have ended", 5.0)
        # A process counts as ended a moment before the last of its threads has closed its sockets.
        wait_until(lambda: is_free(api.port), "the port is free", 5.0)


def is_free(port: int) -> bool:
    """Return whether a server can listen at the port."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_a_rate_limit_holds_over_all_processes_with_redis_and_in_each_without(
    model: TinyModel, sqlite_url: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    limit(sqlite_url, 7)
    settings = {"redis_url": redis_server.url, "bell_prefix": f"of-{tmp_path.name}", "bell_socket": None}
    with several_processes(model.directory, sqlite_url, tmp_path, **settings) as api:
        for processes in (1, PROCESSES):
            if processes > 1:
                redis_server.stop()
            answers = [client.get("/v1/jobs").status_code for _ in range(10) for client in api.clients().values()]
            most = 7 * processes
            assert most <= answers.count(200) <= most + processes, "one more in each if a new window begins"
            assert answers[-1] == 429
    redis_server.start()
