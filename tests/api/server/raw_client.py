"""A client that sends any bytes, and tells what came back."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import dataclass
from typing import Any

from api.server.connection import Connection
from tests.api.serving import DEADLINE_SECONDS, RunningApi, eventually


@dataclass(frozen=True)
class Answer:
    """One answer of the server."""

    status: int
    headers: dict[str, str]  # with names in lower case
    body: bytes

    @property
    def code(self) -> str:
        """The code of the error envelope."""
        code: str = self.error["code"]
        return code

    @property
    def error(self) -> dict[str, Any]:
        """The error envelope's content."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


class RawClient:
    """One connection to a server."""

    def __init__(self, api: RunningApi, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(DEADLINE_SECONDS)
        self.socket.connect(("127.0.0.1", int(api.url.rpartition(":")[2])))
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(b"".join(parts))

    def answer(self) -> Answer:
        """Read the next answer, which must be the answer to no HEAD request."""
        status = int(self._line().split()[1])
        headers = {}
        while line := self._line():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding") != "chunked":
            return Answer(status, headers, self._file.read(int(headers.get("content-length", "0"))))
        body = b""
        while size := int(self._line(), 16):
            body += self._file.read(size + 2)[:-2]
        self._line()
        return Answer(status, headers, body)

    def _line(self) -> str:
        line = self._file.readline()
        assert line.endswith(b"\r\n"), "the connection has ended"
        return line[:-2].decode("latin-1")

    def is_closed(self) -> bool:
        """Wait for the next byte, or for the end of the connection. Returns whether it has ended."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True


def head(*headers: str, line: str = "GET /livez HTTP/1.1") -> bytes:
    """Return the head of a request."""
    return "\r\n".join([line, "host: localhost", *headers, "", ""]).encode()


def refused(api: RunningApi, limit: str) -> float:
    """Return how often a limit refused something."""
    found = re.search(rf'scoreline_refused_requests_total{{limit="{limit}"}} (\S+)', api.client.get("/metrics").text)
    return 0.0 if found is None else float(found[1])


def connection_of(api: RunningApi, client: RawClient) -> Connection:
    """Return the server's side of a connection."""
    eventually(lambda: [one for one in connections(api) if one.client == client.socket.getsockname()], "it is accepted")
    (found,) = [one for one in connections(api) if one.client == client.socket.getsockname()]
    return found


def connections(api: RunningApi) -> list[Connection]:
    """Return the open connections of a server."""
    everybody = list(api._server.server_state.connections)
    return [one for one in everybody if isinstance(one, Connection)]
