"""Requests over plain sockets, which a client can leave unfinished or break off, and tenants that send them."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key
from tests.api.serving import DEADLINE_SECONDS, KEY, RunningApi

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Answer:
    """What a client has received."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(json.loads(self.body)["error"]["code"])


class RawRequest:
    """A request on a connection of its own."""

    def __init__(self, api: RunningApi, line: str, headers: Mapping[str, str], body: bytes, key: str | None) -> None:
        address = urlsplit(api.url)
        self.connection = socket.create_connection((address.hostname, address.port), timeout=DEADLINE_SECONDS)
        self.begin(line, {"Host": address.netloc, **headers}, body, key)

    def begin(self, line: str, headers: Mapping[str, str], body: bytes = b"", key: str | None = KEY) -> None:
        """Send the head of a request, and bytes of its body."""
        sent = {**headers} if key is None else {"Authorization": f"Bearer {key}", **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        self.connection.sendall(f"{line} HTTP/1.1\r\n{head}\r\n".encode() + body)

    def send(self, data: bytes) -> None:
        """Send further bytes of the body."""
        self.connection.sendall(data)

    def answer(self) -> Answer:
        """Return the answer, when it has come."""
        response = HTTPResponse(self.connection)
        response.begin()
        body = response.read()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)

    def is_closed(self) -> bool:
        """Wait for further bytes. Returns whether the server has closed the connection instead of sending any."""
        try:
            return self.connection.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Close the connection, as a client does that goes away."""
        self.connection.close()


def begin(
    api: RunningApi, line: str, headers: Mapping[str, str] | None = None, body: bytes = b"", key: str | None = KEY
) -> RawRequest:
    """Begin a request: send its head, and bytes of its body."""
    return RawRequest(api, line, headers or {}, body, key)


def begin_body(api: RunningApi, path: str, declared: int, body: bytes = b"", key: str | None = KEY) -> RawRequest:
    """Begin a request with a JSON body of a declared length."""
    return begin(api, f"POST {path}", {**JSON, "Content-Length": str(declared)}, body, key)


def begin_json(api: RunningApi, path: str, content: Any, key: str | None = KEY) -> RawRequest:
    """Send a request with a JSON body."""
    body = json.dumps(content).encode()
    return begin_body(api, path, len(body), body, key)


def key_of(api: RunningApi, tenant: str) -> str:
    """Return a new key of a tenant, which is made if need be."""
    with closing(Database.open(api.store)) as store:
        return create_key(store, tenant, tenant, frozenset(Scope))[0]
