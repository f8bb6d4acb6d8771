"""A proxy in front of PostgreSQL that cuts a connection at a COMMIT, before or after the COMMIT is carried out.

A statement without a transaction around it is a COMMIT as well.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import Enum

from tests.proxy import Proxy

_COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
"""The message that psycopg sends."""

_ROLLBACK = b"Q\x00\x00\x00\x0dROLLBACK\x00"
_BEGIN = b"BEGIN"
"""What the message begins with that begins a transaction."""

_END_OF_STATEMENT = b"S\x00\x00\x00\x04"
"""The last message of a statement with parameters."""


class Cut(Enum):
    """Which message is lost, and whether the client learns that its connection is closed or hears nothing at all.

    The COMMIT is the whole statement if there is no transaction around it.
    """

    COMMIT = "the COMMIT itself"
    ANSWER = "the answer to it"
    SILENT_COMMIT = "the COMMIT itself, in silence"
    SILENT_ANSWER = "the answer to it, in silence"

    @property
    def is_silent(self) -> bool:
        """Whether the connection stays open until the client closes it."""
        return self in (Cut.SILENT_COMMIT, Cut.SILENT_ANSWER)

    @property
    def commits(self) -> bool:
        """Whether the COMMIT is carried out."""
        return self in (Cut.ANSWER, Cut.SILENT_ANSWER)


class CuttingProxy(Proxy):
    """Relays connections to PostgreSQL until closed."""

    def __init__(self, upstream_port: int) -> None:
        self._lock = threading.Lock()
        self._armed: tuple[bytes, Cut] | None = None  # text of the transaction to cut, and how
        self.cuts = 0  # how many connections were cut
        super().__init__(upstream_port)

    def cut_after(self, statement: bytes, cut: Cut) -> None:
        """Cut the next transaction, or statement that is one by itself, that contains this text, at its COMMIT."""
        with self._lock:
            self._armed = (statement, cut)

    def carry(self, client: socket.socket, upstream: socket.socket) -> None:
        """Pass on requests and answers at the same time."""
        relay = _Relay(self, client, upstream)
        threading.Thread(target=relay.carry_answers, daemon=True).start()
        relay.carry_requests()

    def _take_cut(self, transaction: bytes) -> Cut | None:
        """Return what to cut of a transaction that is about to be committed."""
        with self._lock:
            if self._armed is None or self._armed[0] not in transaction:
                return None
            cut = self._armed[1]
            self._armed = None
            self.cuts += 1
            return cut


class _Relay:
    """One connection of a client, and the one to PostgreSQL that belongs to it."""

    def __init__(self, proxy: CuttingProxy, client: socket.socket, upstream: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream = upstream
        self._swallowing: Cut | None = None  # what to do with all further answers

    def carry_requests(self) -> None:
        transaction = b""
        while data := self._receive(self._client):
            transaction += data
            if transaction.endswith(_ROLLBACK):
                transaction = b""
            alone = _BEGIN not in transaction and transaction.endswith(_END_OF_STATEMENT)
            if alone or transaction.endswith(_COMMIT):
                cut = self._proxy._take_cut(transaction)
                if cut is not None and cut.commits:
                    self._swallowing = cut
                elif cut is not None:
                    while cut.is_silent and self._receive(self._client):
                        pass
                    break
                transaction = b""
            self._send(self._upstream, data)
        self._close()

    def carry_answers(self) -> None:
        while data := self._receive(self._upstream):
            if self._swallowing is not None:
                if self._swallowing.is_silent:
                    continue
                break
            self._send(self._client, data)
        self._close()

    def _receive(self, connection: socket.socket) -> bytes:
        try:
            return connection.recv(65536)
        except OSError:
            return b""

    def _send(self, connection: socket.socket, data: bytes) -> None:
        try:
            connection.sendall(data)
        except OSError:
            self._close()

    def _close(self) -> None:
        for connection in (self._client, self._upstream):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
