"""A server that answers as a test says, and the service behind a proxy that fails as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2


@dataclass(frozen=True, slots=True)
class Got:
    """A request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. Without a status the connection is closed instead."""

    status: int | None
    body: object = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def refused(status: int, code: str, **headers: str) -> Reply:
    """Return the answer of the service to a request that it refuses."""
    body = {"error": {"code": code, "message": f"this is {code}", "param": "items[3]", "type": "x"}}
    return Reply(status, body, {"x-request-id": "the-request", **headers})


BROKEN = Reply(None)
"""The connection breaks before there is an answer."""


class Server:
    """What a running server has got, and where it is."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.got: list[Got] = []


@contextmanager
def answering(answer: Callable[[Got], Reply], port: int = 0) -> Iterator[Server]:
    """Run a server that answers each request with what the function returns. port: 0: any free one."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            try:
                body = self._body()
            except ValueError:  # the body broke off
                self.close_connection = True
                return
            server.got.append(Got(self.command, self.path, dict(self.headers.items()), body))
            reply = answer(server.got[-1])
            if reply.status is None:
                self.close_connection = True
                return
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                if name != "Content-Length":
                    self.send_header(name, value)
            self.send_header("Content-Length", reply.headers.get("Content-Length", str(len(content))))
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = "Content-Length" in reply.headers  # It promised more than it has.

        do_GET = do_POST = do_DELETE = handle_any  # noqa: N815 (names of the base class)

        def _body(self) -> bytes:
            if self.headers["Transfer-Encoding"] != "chunked":
                return self.rfile.read(int(self.headers["Content-Length"] or 0))
            parts = []
            while length := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(length))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as http:
        server = Server(f"http://127.0.0.1:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        http.shutdown()


def in_turn(*replies: Reply) -> Callable[[Got], Reply]:
    """Answer with these, one after the other, and with the last one from then on."""
    left = list(replies)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def passed_on(url: str, got: Got) -> Reply:
    """Return the answer of the server at an address to a request."""
    kept = {name: value for name, value in got.headers.items() if name.lower() not in ("host", "transfer-encoding")}
    with httpx2.Client(base_url=url, timeout=60) as http:
        response = http.request(got.method, got.path, content=got.body, headers=kept)
    return Reply(response.status_code, response.content)
