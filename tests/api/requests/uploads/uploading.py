"""Build and send uploads to a running API."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx2
from sqlalchemy import func, select

from jobs.store.database import Database
from jobs.store.tables import chunks, idempotency_keys, jobs
from tests.api.serving import RunningApi, eventually
from tests.api.tiny_model import CONTEXT

JOB: dict[str, Any] = {"query": "The capital of", "label_token_ids": [70, 71]}
LINES = {"Content-Type": "application/x-ndjson"}
GZIP = LINES | {"Content-Encoding": "gzip"}
KEY = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}

FIRST = json.dumps(JOB).encode() + b"\n"
GOOD = b'"good"\n' * 9
LONG = json.dumps("word " * CONTEXT).encode()
"""The first line, nine good ones, and an item that is too long for the model."""


def body(items: Iterable[object], job: dict[str, Any] = JOB) -> bytes:
    """Return the lines of an upload."""
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in (job, *items))


def send(api: RunningApi, content: bytes | Iterator[bytes], headers: dict[str, str] = LINES) -> httpx2.Response:
    """Send an upload to ``POST /v1/jobs``."""
    return api.client.post("/v1/jobs", content=content, headers=headers)


def error(response: httpx2.Response) -> tuple[int, str, str | None, str]:
    """Return the status, code, param and message of an error response."""
    found = response.json()["error"]
    return response.status_code, found["code"], found["param"], found["message"]


def rows_of(api: RunningApi, table: Any = jobs) -> int:
    """Return the number of rows of a table."""
    database = Database.open(api.store)
    with closing(database), database.read() as connection:
        return int(connection.scalar(select(func.count()).select_from(table)) or 0)


def nothing_is_left(api: RunningApi) -> bool:
    """Return whether the database has no trace of any job."""
    return [rows_of(api, table) for table in (jobs, chunks, idempotency_keys)] == [0, 0, 0]


def receiving(api: RunningApi) -> list[dict[str, Any]]:
    """Return the jobs that are being received, at most twenty."""
    listed: list[dict[str, Any]] = api.client.get("/v1/jobs", params={"status": "receiving"}).json()["data"]
    return listed


class HeldUpload:
    """An upload whose first piece is sent at once, and the rest by :meth:`finish`."""

    def __init__(self, api: RunningApi, pieces: Sequence[bytes], headers: dict[str, str] = LINES) -> None:
        self.go_on = threading.Event()

        def content() -> Iterator[bytes]:
            yield pieces[0]
            self.go_on.wait(20)
            yield from pieces[1:]

        self._pool = ThreadPoolExecutor(1)
        self._answer = self._pool.submit(send, api, content(), headers)
        listed: list[dict[str, Any]] = []

        def begins() -> bool:
            listed[:] = receiving(api)
            return bool(listed)

        eventually(begins, "the upload begins")
        (self.job,) = listed

    def finish(self) -> httpx2.Response:
        """Send the rest and return the answer."""
        self.go_on.set()
        with self._pool:
            return self._answer.result(20)


def connect(api: RunningApi, headers: dict[str, str]) -> socket.socket:
    """Open a connection and send the head of an upload."""
    address = urlsplit(api.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=20)
    head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": address.netloc, **LINES, **headers}.items())
    connection.sendall(f"POST /v1/jobs HTTP/1.1\r\n{head}\r\n".encode())
    return connection
