"""Receivers of webhooks on real sockets, each with a script of how to misbehave."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

Script = Callable[[socket.socket], object]
"""What a receiver does with a connection; the connection is closed after it. An OSError ends it."""

LOOPBACK = "127.0.0.1"


class Receiver:
    """Takes connections, each in a thread, until it is closed.

    tls: takes them with TLS; reads: reads the request first; accepted: connections so far; requests: what was read of
    them, headers and body.
    """

    def __init__(
        self,
        script: Script,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        reads: bool = True,
    ) -> None:
        self._script = script
        self._tls = tls
        self._reads = reads
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port = int(self._listener.getsockname()[1])
        self.accepted = 0
        self.requests: list[bytes] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # To shut a listening socket down wakes the thread that waits for a connection; to close it alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(15)
            assert not thread.is_alive(), "a receiver did not stop"

    def url(self, host: str = LOOPBACK, scheme: str = "http") -> str:
        """Return the URL of the receiver, with any name for its host."""
        return f"{scheme}://{host}:{self.port}/hook?from=scoreline"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):  # Whoever sends has had enough, which is what most of these tests are about.
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            self._open.add(connection)
            if self._reads:
                self.requests.append(read_request(connection))
            self._script(connection)
        self._open.discard(connection)
        connection.close()


def read_request(connection: socket.socket) -> bytes:
    """A whole request. Raises ConnectionError if there is none."""
    data = b""
    while True:
        head, separator, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: ([0-9]+)", head.lower())
        if separator and len(body) >= (int(length[1]) if length else 0):
            return data
        more = connection.recv(65_536)
        if not more:
            raise ConnectionError("the request ended early")
        data += more


def answering(response: bytes) -> Script:
    """Send this response and close."""
    return lambda connection: connection.sendall(response)


def status(code: int, *headers: str, body: bytes = b"") -> Script:
    """Send a well-formed response."""
    lines = [f"HTTP/1.1 {code} Whatever", *headers, f"Content-Length: {len(body)}", "", ""]
    return answering("\r\n".join(lines).encode() + body)


def hang(connection: socket.socket) -> None:
    """Send nothing until the other side closes the connection."""
    while connection.recv(65_536):
        pass


def dribbling(start: bytes, pause: float = 0.02) -> Script:
    """Send this, and then one byte after another without end."""

    def dribble(connection: socket.socket) -> None:
        connection.sendall(start)
        stopped = threading.Event()
        while not stopped.wait(pause):
            connection.sendall(b"x")

    return dribble


class Endless:
    """Sends a start, and then more without end. sent: bytes that the connection took."""

    def __init__(self, start: bytes, more: bytes) -> None:
        self._start = start
        self._more = more
        self.sent = 0

    def __call__(self, connection: socket.socket) -> None:
        connection.sendall(self._start)
        while True:
            self.sent += connection.send(self._more)
