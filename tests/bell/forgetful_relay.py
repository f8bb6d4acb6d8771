"""A relay in front of a server that forgets connections, as a router does: neither side is told anything."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.proxy import Proxy


class ForgetfulRelay(Proxy):
    """Relays connections to a local port until closed."""

    def __init__(self, upstream_port: int) -> None:
        self._open: list[socket.socket] = []
        self._forgotten = threading.Event()  # replaced at each forgetting; set for the connections up to then
        super().__init__(upstream_port)

    def forget(self) -> None:
        """Pass on nothing more on the connections that are open now. Later connections are relayed."""
        forgotten, self._forgotten = self._forgotten, threading.Event()
        forgotten.set()

    def close(self) -> None:
        """Close all connections, and accept no more."""
        super().close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def carry(self, client: socket.socket, upstream: socket.socket) -> None:
        """Pass on what comes from either side until the connection is forgotten."""
        self._open += [client, upstream]
        forgotten = self._forgotten
        threading.Thread(target=self._pass_on, args=(upstream, client, forgotten), daemon=True).start()
        self._pass_on(client, upstream, forgotten)

    def _pass_on(self, source: socket.socket, target: socket.socket, forgotten: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if forgotten.is_set():
                    continue
                target.sendall(data)
            if not forgotten.is_set():
                target.shutdown(socket.SHUT_WR)
