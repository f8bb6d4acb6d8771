"""Clients of event streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from tests.api.serving import KEY, RunningApi


@dataclass(frozen=True)
class Sent:
    """An event that a client got. A comment has the name ``:``."""

    name: str
    id: str | None
    data: Any


@contextmanager
def following(api: RunningApi, followed_id: str, last: str | None = None, **params: Any) -> Iterator[Iterator[Sent]]:
    """Follow a job or a batch, and yield its events as they come."""
    headers = {"Last-Event-ID": last} if last is not None else {}
    with api.client.stream("GET", events_path(followed_id), params=params, headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        yield events_of(response)


def events_path(followed_id: str) -> str:
    """Return the path of the events of a job or a batch."""
    return f"/v1/{'batches' if followed_id.startswith('batch_') else 'jobs'}/{followed_id}/events"


def events_of(response: httpx2.Response) -> Iterator[Sent]:
    """Yield the events of a response."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line.startswith(":"):
            yield Sent(":", None, None)
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield Sent(fields["event"], fields["id"], json.loads(fields["data"]))
            fields = {}


async def connect(api: RunningApi, job_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Follow a job on a connection of its own, and return when the first event has come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
    writer.write(f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
    await reader.readuntil(b"event: progress\n")
    return reader, writer
