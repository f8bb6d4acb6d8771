"""Answering that the server starts, while its libraries and its tokenizer are loaded."""

from __future__ import annotations

import os
import select
import socket
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress

SECONDS = 0.5
"""The longest time that a client has to send its request, or to take the answer: others wait for it."""

REQUEST_BYTES = 65_536


class Starting:
    """A thread that answers each request on some sockets with the same refusal, until the server takes them over."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        """sockets: bound."""
        self.sockets = sockets
        for one in sockets:
            one.listen(128)
            one.setblocking(False)
        self._end, self._ended = os.pipe()
        threading.Thread(target=self._answer_all, daemon=True).start()

    def end(self) -> None:
        """Leave what comes from now on to the server, which listens already."""
        os.close(self._ended)

    def _answer_all(self) -> None:
        # The import takes a second. Meanwhile, connections wait.
        from api.server.refusals import encode, starting

        while True:
            listening = {one.fileno(): one for one in self.sockets}
            ready = select.select([*listening, self._end], [], [])[0]
            if self._end in ready:
                os.close(self._end)
                return
            for descriptor in ready:
                with suppress(OSError):  # The client has gone, or the server was faster.
                    connection = listening[descriptor].accept()[0]
                    with connection:
                        connection.settimeout(SECONDS)
                        connection.recv(REQUEST_BYTES)
                        connection.sendall(encode(starting(), uuid.uuid4().hex, ())[1])
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(REQUEST_BYTES):
                            pass  # A client loses the answer if the connection is closed on unread bytes.
