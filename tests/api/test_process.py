"""The API as a process: its log, its request ids, and how it starts and stops."""

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

from tests.api.serving import DEADLINE_SECONDS, RunningApi, eventually
from tests.api.tiny_model import TinyModel
from tests.services import free_port

BODY: dict[str, Any] = {"query": "Confidential capital of", "items": [" Atlantis is"], "label_token_ids": [70]}


@contextmanager
def api_process(**settings: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``python -m api`` with these settings, and its URL."""
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


def test_a_process_logs_one_line_a_request_without_its_text_and_stops_in_the_middle_of_a_wait(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    settings = {"model": str(model.directory), "database_url": sqlite_url, "bell_socket": str(tmp_path / "bell")}
    with api_process(**settings) as (process, url), httpx2.Client(base_url=url, timeout=DEADLINE_SECONDS) as client:

        def answers() -> bool:
            try:
                return client.get("/livez").status_code == 200
            except httpx2.TransportError:
                assert process.poll() is None
                return False

        eventually(answers, "the process serves")
        job = client.post("/v1/jobs", json=BODY, headers={"x-request-id": "trace-1"}).json()
        client.get(f"/v1/unknown?{BODY['query']}", headers={"x-request-id": "trace-2"})
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as waiting:
            head = [f"GET {job['urls']['self']} HTTP/1.1", "host: test", "prefer: wait=60", "x-request-id: trace-3"]
            waiting.sendall("\r\n".join([*head, "", ""]).encode())
            # What was sent before these has been read when these are answered.
            for _ in range(5):
                assert client.get("/livez").status_code == 200
            process.send_signal(signal.SIGTERM)
            waiting.settimeout(DEADLINE_SECONDS)
            answer = b"".join(iter(lambda: waiting.recv(65536), b""))
        _, log = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == "queued"

    assert "Confidential" not in log
    assert "Atlantis" not in log
    entries = [json.loads(line) for line in log.splitlines()]
    for request_id, method, path, status in [
        ("trace-1", "POST", "/v1/jobs", 202),
        ("trace-2", "GET", "/v1/unknown", 404),
        ("trace-3", "GET", job["urls"]["self"], 200),
    ]:
        (line,) = [entry for entry in entries if entry.get("request_id") == request_id]
        assert (line["method"], line["path"], line["status"], line["event"]) == (method, path, status, "request")
        assert line["duration_ms"] >= 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"database_url": "mysql://a/b"}, "mysql"),
        ({"max_labels": "many"}, "max_labels"),
    ],
)
def test_a_process_that_can_not_start_says_why_in_one_line(
    model: TinyModel, settings: dict[str, str], says: str
) -> None:
    with api_process(**{"model": str(model.directory)} | settings) as (process, _):
        _, log = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 1
        assert "Traceback" not in log
        (line,) = [json.loads(line) for line in log.splitlines()]
        assert says in line["reason"]


@pytest.mark.parametrize("sane", ["a", "3f2c-1", "A" * 128, "req_1:2.3+4/5="])
def test_a_sane_request_id_is_kept(api: RunningApi, sane: str) -> None:
    assert api.client.get("/livez", headers={"x-request-id": sane}).headers["x-request-id"] == sane


@pytest.mark.parametrize("insane", ["", "a b", "A" * 129, "é", '"quoted"', "<script>"])
def test_a_request_id_that_is_not_sane_is_replaced(api: RunningApi, insane: str) -> None:
    response = api.client.get("/v1/nowhere", headers={"x-request-id": insane.encode()})
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])
    assert response.headers["x-request-id"] != api.client.get("/livez").headers["x-request-id"]
