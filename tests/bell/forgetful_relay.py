"""A relay in front of a server that forgets connections, as a router does: neither side is told anything."""

from __future__ import annotations

import contextlib
import socket
import threading


class ForgetfulRelay:
    """Relays connections to a local port until closed."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._open: list[socket.socket] = []
        self._forgotten = threading.Event()  # replaced at each forgetting; set for the connections up to then
        threading.Thread(target=self._accept, daemon=True).start()

    def forget(self) -> None:
        """Pass on nothing more on the connections that are open now. Later connections are relayed."""
        forgotten, self._forgotten = self._forgotten, threading.Event()
        forgotten.set()

    def close(self) -> None:
        """Close all connections, and accept no more."""
        for one in (self._server, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
                upstream = socket.create_connection(("127.0.0.1", self._upstream_port))
            except OSError:
                return
            self._open += [client, upstream]
            for source, target in ((client, upstream), (upstream, client)):
                threading.Thread(target=self._carry, args=(source, target, self._forgotten), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, forgotten: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if forgotten.is_set():
                    continue
                target.sendall(data)
            if not forgotten.is_set():
                target.shutdown(socket.SHUT_WR)
