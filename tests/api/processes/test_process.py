"""The API as a process: its log, its request ids, its start and its end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key, hash_secret, revoke_key
from settings.store import StoreSettings
from tests.api.serving import DEADLINE_SECONDS, KEY, RunningApi, eventually
from tests.api.tiny_model import TinyModel
from tests.forked.running import SERVER, Forked, run, start
from tests.services import free_port

BODY: dict[str, Any] = {"query": "Confidential capital of", "items": [" Atlantis is"], "label_token_ids": [70]}


@contextmanager
def api_process(**settings: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run ``python -m api`` with these settings. Yields the process and its URL."""
    port = free_port()
    environment = os.environ | {f"SCORELINE_{name.upper()}": value for name, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "api"],
        env=environment | {"SCORELINE_PORT": str(port)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def forked_api(log: Path, **settings: str) -> Iterator[tuple[Forked, str]]:
    """Run it as a process that is forked from one with all imports, and that logs into a file."""
    port = free_port()
    given = {f"SCORELINE_{name.upper()}": value for name, value in settings.items()} | {"SCORELINE_PORT": str(port)}
    process = start("-m", "api", imports=SERVER, log=log, environment=os.environ | given)
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(DEADLINE_SECONDS)


def ended(**settings: str) -> tuple[int, str]:
    """Run ``python -m api`` with settings that end it. Returns its status and its log."""
    given = {f"SCORELINE_{name.upper()}": value for name, value in ({"port": "0"} | settings).items()}
    outcome = run("-m", "api", imports=SERVER, environment=os.environ | given)
    return outcome.returncode, outcome.stderr


def wait_for(client: httpx2.Client, process: subprocess.Popen[str] | Forked) -> None:
    """Return when the process serves."""

    def answers() -> bool:
        try:
            return client.get("/livez").status_code == 200
        except httpx2.TransportError:
            assert process.poll() is None
            return False

    eventually(answers, "the process serves")


def test_a_process_that_nobody_stands_in_for_says_that_it_starts(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    settings = {"model": str(model.directory), "database_url": sqlite_url, "bell_socket": str(tmp_path / "bell")}
    seen: list[httpx2.Response] = []
    with api_process(**settings) as (process, url), httpx2.Client(base_url=url, timeout=DEADLINE_SECONDS) as client:

        def answers() -> bool:
            try:
                seen.append(client.get("/livez"))
            except httpx2.ConnectError:
                assert not seen, "it takes no connections any more"
                return False
            except httpx2.RemoteProtocolError:
                return False  # This client got no processor for half a second, after which others are served.
            return seen[-1].status_code == 200

        eventually(answers, "the process serves")
        process.terminate()
        assert process.wait(DEADLINE_SECONDS) == 0
    first = seen[0]
    assert (first.status_code, first.json()["error"]["code"]) == (503, "server_starting")
    assert (first.headers["retry-after"], first.headers["connection"]) == ("1", "close")
    assert {answer.status_code for answer in seen} == {200, 503}


def test_a_process_logs_one_line_per_request_without_its_text_and_stops_during_a_wait(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    settings = {"model": str(model.directory), "database_url": sqlite_url, "bell_socket": str(tmp_path / "bell")}
    log = tmp_path / "log"
    with forked_api(log, **settings) as (process, url), httpx2.Client(base_url=url, timeout=DEADLINE_SECONDS) as client:
        wait_for(client, process)
        job = client.post("/v1/jobs", json=BODY, headers={"x-request-id": "trace-1"}).json()
        client.get(f"/v1/unknown?{BODY['query']}", headers={"x-request-id": "trace-2"})
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as waiting:
            head = [
                f"GET {job['urls']['self']} HTTP/1.1",
                "host: localhost",
                "prefer: wait=60",
                "x-request-id: trace-3",
            ]
            waiting.sendall("\r\n".join([*head, "", ""]).encode())
            # When these are answered, the request that was sent before them has been read.
            for _ in range(5):
                assert client.get("/livez").status_code == 200
            process.send_signal(signal.SIGTERM)
            waiting.settimeout(DEADLINE_SECONDS)
            answer = b"".join(iter(lambda: waiting.recv(65536), b""))
        assert process.wait(DEADLINE_SECONDS) == 0
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == "queued"

    logged = log.read_text()
    assert "Confidential" not in logged
    assert "Atlantis" not in logged
    entries = [json.loads(line) for line in logged.splitlines()]
    for request_id, method, path, status in [
        ("trace-1", "POST", "/v1/jobs", 202),
        ("trace-2", "GET", "/v1/unknown", 404),
        ("trace-3", "GET", job["urls"]["self"], 200),
    ]:
        (line,) = [entry for entry in entries if entry.get("request_id") == request_id]
        assert (line["method"], line["path"], line["status"], line["event"]) == (method, path, status, "request")
        assert line["duration_ms"] >= 0


@pytest.mark.slow
def test_the_objects_of_the_libraries_are_exempted_from_collections(model: TinyModel, sqlite_url: str) -> None:
    count = "serving.Server.run = lambda *_: print(gc.get_freeze_count())"
    serve = f"import gc; from api import __main__ as main; from api.processes import serving; {count}; main.main()"
    settings = {"model": str(model.directory), "database_url": sqlite_url, "bootstrap_key": KEY}
    result = subprocess.run(
        [sys.executable, "-c", serve],
        env=os.environ | {f"SCORELINE_{name.upper()}": value for name, value in settings.items()},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert int(result.stdout) > 100_000


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
        pytest.param({"database_url": "mysql://a/b"}, "mysql", marks=pytest.mark.slow),
        pytest.param({"max_labels": "many"}, "SCORELINE_MAX_LABELS is 'many'", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_can_not_start_logs_the_reason_in_one_line(
    model: TinyModel, settings: dict[str, str], says: str
) -> None:
    status, log = ended(**{"model": str(model.directory)} | settings)
    assert status == 2
    assert "Traceback" not in log
    (line,) = [json.loads(line) for line in log.splitlines()]
    assert says in line["reason"]


def test_neither_valid_nor_invalid_keys_are_logged(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    """The settings are as in production: keys are required, and the URL of Redis contains a password."""
    store = Database.open(StoreSettings(database_url=sqlite_url))
    scopes = frozenset(Scope)
    good, _ = create_key(store, "acme", "good", scopes)
    revoked, record = create_key(store, "acme", "revoked", scopes)
    revoke_key(store, record.id)
    store.close()
    bootstrap = "bootstrap-key-of-this-process-" + "7" * 16
    settings = {
        "model": str(model.directory),
        "database_url": sqlite_url,
        "redis_url": f"redis://:redis-password@127.0.0.1:{free_port()}/0",
        "bootstrap_key": bootstrap,
    }
    bad = [good[:-1] + "!", "sk_sl_" + "a" * 16 + "_" + "b" * 52, "Confidential", revoked, "é" * 20]
    statuses = []
    file = tmp_path / "log"
    with (
        forked_api(file, **settings) as (process, url),
        httpx2.Client(base_url=url, timeout=DEADLINE_SECONDS) as client,
    ):
        wait_for(client, process)
        for key in (good, bootstrap, *bad):
            header = [(b"authorization", f"Bearer {key}".encode())]
            paths = ("/v1/jobs", f"/v1/jobs?api_key={key}", f"/v1/unknown?key={key}")
            statuses += [client.get(path, headers=header).status_code for path in paths]
            statuses.append(client.post("/v1/jobs", json=BODY, headers=header).status_code)
            client.get("/v1/jobs", headers=[(b"x-api-key", key.encode()), (b"cookie", f"key={key}".encode())])
            client.get("/v1/jobs", auth=("user", key))
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_SECONDS)
    log = file.read_text()
    assert {200, 202, 401, 404} <= set(statuses)
    assert log.count('"event": "request"') > 30
    assert "earer" not in log
    for secret in (*(key.rpartition("_")[2] for key in (good, revoked, bad[1])), bootstrap, "Confidential", "éé"):
        assert secret not in log
        assert hash_secret(secret) not in log
        assert json.dumps(secret)[1:-1] not in log
    assert "redis-password" not in log


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "there is no API key"),
        ({"bootstrap_key": "much-too-short-to-be-a-key"}, "32 characters"),
        *(
            pytest.param(settings, says, marks=pytest.mark.slow)
            for settings, says in (
                ({"bootstrap_key": ""}, "SCORELINE_BOOTSTRAP_KEY"),
                ({"bootstrap_key": "long enough but it has spaces in it, so it is none"}, "no spaces"),
                ({"bootstrap_key": "long-enough-but-not-all-of-it-is-ascii-é"}, "ASCII"),
                ({"host": "0.0.0.0", "bell_socket": "/tmp/nobody-listens-here"}, "there is no API key"),
            )
        ),
    ],
)
def test_a_process_without_any_usable_key_does_not_start(
    model: TinyModel, sqlite_url: str, settings: dict[str, str], says: str
) -> None:
    given = {"model": str(model.directory), "database_url": sqlite_url} | settings
    status, log = ended(**given)
    assert status == 2
    (reason,) = [line["reason"] for line in map(json.loads, log.splitlines()) if "reason" in line]
    assert says in reason
    if key := settings.get("bootstrap_key"):
        assert key not in log
        assert json.dumps(key)[1:-1] not in log


@pytest.mark.parametrize("valid", ["a", "3f2c-1", "A" * 128, "req_1:2.3+4/5="])
def test_a_valid_request_id_is_kept(api: RunningApi, valid: str) -> None:
    assert api.client.get("/livez", headers={"x-request-id": valid}).headers["x-request-id"] == valid


@pytest.mark.parametrize("invalid", ["", "a b", "A" * 129, "é", '"quoted"', "<script>"])
def test_an_invalid_request_id_is_replaced(api: RunningApi, invalid: str) -> None:
    response = api.client.get("/v1/nowhere", headers={b"x-request-id": invalid.encode()})
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])
    assert response.headers["x-request-id"] != api.client.get("/livez").headers["x-request-id"]
