"""Stand between a client and a local server."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod


class Proxy(ABC):
    """Accepts connections until closed. Subclasses say what becomes of each."""

    def __init__(self, upstream_port: int) -> None:
        """Begin to accept connections, so subclasses call this last. ``upstream_port`` may change for later ones."""
        self.upstream_port = upstream_port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no further connections."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._server.close()

    @abstractmethod
    def carry(self, client: socket.socket, upstream: socket.socket) -> None:
        """Pass on what comes over a connection, in a thread of its own. ``upstream`` leads to the server."""

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
                upstream = socket.create_connection(("127.0.0.1", self.upstream_port))
            except OSError:
                return
            threading.Thread(target=self.carry, args=(client, upstream), daemon=True).start()
