"""Whatever bytes come, in whatever pieces: each connection comes to its end, and no error is logged."""

from __future__ import annotations

import random
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.api.server.raw_client import RawClient, connections
from tests.api.serving import RunningApi, eventually, running_api
from tests.api.tiny_model import TinyModel

CONNECTIONS, CLIENTS = 400, 16

PIECES = [
    *(f"{line} HTTP/1.1\r\n".encode() for line in ("GET /livez", "POST /v1/score", "HEAD /livez")),
    *(f"{method} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode() for method in ("GET /livez", "GET /openapi.json")),
    b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\r\nhello",
    b"POST /v1/score HTTP/1.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
    b"host: localhost\r\n",
    b"content-length: 5\r\n",
    b"content-type: application/json\r\n",
    b"transfer-encoding: chunked\r\n",
    b"connection: close\r\n",
    b"connection: keep-alive\r\n",
    b"connection: upgrade\r\nupgrade: h2c\r\n",
    b"expect: 100-continue\r\n",
    b"cookie: a=b\r\n",
    b"x: " + b"b" * 500 + b"\r\n",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"0\r\nx: y\r\n\r\n",
    b"\r\n",
    b"hello",
    b"a" * 300,
    b"\0",
]


def test_every_connection_comes_to_its_end(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.server.connection.DRAIN_SECONDS", 0.2)
    monkeypatch.setattr("api.server.server.WATCH_TICKS", 1)
    running = running_api(
        model.directory,
        sqlite_url,
        tmp_path,
        with_worker=False,
        max_header_bytes=1500,
        max_pipelined_requests=3,
        header_seconds=0.2,
        body_silence_seconds=0.2,
    )
    with running as (api, _), capture_logs() as logs:
        api._server.config.timeout_keep_alive = 0  # seconds between two requests
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda seed: _send_and_read(api, random.Random(seed)), range(CONNECTIONS)))
        eventually(lambda: not connections(api), "all connections are closed")
        assert api.client.get("/livez").status_code == 200
    # The watch of a server of another test may notice once more that its database is gone.
    of_others = "the database is away"
    assert [one for one in logs if one["log_level"] != "info" and one["event"] != of_others] == []


def _send_and_read(api: RunningApi, chance: random.Random) -> None:
    """Send pieces of requests, and read until the server closes the connection or it is time to leave."""
    data = b"".join(chance.choices(PIECES, k=chance.randint(1, 12)))
    with RawClient(api) as client:
        try:
            while data:
                size = chance.randint(1, len(data))
                client.send(data[:size])
                data = data[size:]
            leaving = chance.random()
            if leaving < 0.2:
                return
            if leaving < 0.3:
                client.socket.shutdown(socket.SHUT_WR)
            while client.socket.recv(65536):
                pass
        except ConnectionError:
            pass
