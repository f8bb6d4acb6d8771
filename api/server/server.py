"""uvicorn's server with this service's connections."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress

import structlog
import uvicorn
from fastapi import FastAPI

from api.server.connection import Connection
from api.server.heap import limit_heaps
from api.server.starting import Starting
from api.service import Service
from api.siblings import Siblings

WATCH_TICKS = 5
"""The server looks for connections that are overdue at every so many ticks of uvicorn's, which are 0.1 s apart."""

ACCEPTED_IN_A_TURN = 16
"""The connections that the server accepts in one turn of its event loop, which takes about a millisecond."""

ANSWER_SECONDS = 2.0
"""The end of the time that a shutdown gives to requests. It is for the answers of calls whose jobs have not ended."""

SWITCH_SECONDS = 0.0005
"""How long a thread that computes keeps the interpreter's lock when the event loop waits for it, as in every turn.

With Python's usual 5 ms, one thread that reads texts makes a call of ten turns 50 ms longer.
"""

CLOSE = (b"connection", b"close")

log = structlog.stdlib.get_logger("api")


class Server(uvicorn.Server):
    """A server that closes connections that are overdue, and whose shutdown ends all waits in time."""

    def __init__(
        self,
        app: FastAPI,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        shutdown_seconds: int,
        drain_seconds: float = 0.0,
        starting: Starting | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        """shutdown_seconds: how long requests in progress may take to finish when the server stops.

        drain_seconds: how long it takes further requests before that. starting: what has answered on its sockets until
        now. Such a server is the only one at its address, so when it stops, it answers to the end that it does.
        siblings: the processes to which it shows that it lives, from when it serves on, and what its requests have in
        use; None: there are none.
        """
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                loop="uvloop",
                http=Connection,
                # No route has websockets, and none asks for the address of a client that a proxy names.
                ws="none",
                proxy_headers=False,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=shutdown_seconds,
            )
        )
        self._app = app
        self._starting = starting
        self._siblings = siblings
        self._heartbeat: asyncio.Task[None] | None = None
        self._drain_seconds = drain_seconds
        self._drained_at = 0.0
        self._call_seconds = max(0.0, shutdown_seconds - ANSWER_SECONDS)  # how long calls wait on during a shutdown

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        finally:
            if self._heartbeat is not None:
                self._heartbeat.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, so that many connections at once, on which nothing need come, keep nobody waiting.

        libuv accepts one connection of each listening socket in a turn, and a turn in which others are served may take
        milliseconds. So each socket is listened to several times.
        """
        limit_heaps()
        sys.setswitchinterval(SWITCH_SECONDS)
        await super().startup(sockets)
        if self._starting is not None:
            self._starting.end()
        for descriptor in [listening.fileno() for server in self.servers for listening in server.sockets]:
            for _ in range(ACCEPTED_IN_A_TURN - 1):
                again = socket.socket(fileno=os.dup(descriptor))
                server = await asyncio.get_running_loop().create_server(
                    self._connection, sock=again, backlog=self.config.backlog
                )
                self.servers.append(server)
        if self._siblings is not None:
            self._heartbeat = asyncio.create_task(self._siblings.keep_heartbeat())

    def _connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        """Look for connections that are overdue. Returns whether the server is to stop."""
        if self._siblings is not None:
            service: Service = self._app.state.service
            self._siblings.set_in_use(service.metrics.in_use())
        if counter % WATCH_TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                assert isinstance(connection, Connection)
                try:
                    connection.close_if_overdue(now)
                except Exception:  # The other connections, and the process, do not depend on it.
                    log.exception("could not close a connection")
                    connection.transport.abort()
        return await super().on_tick(counter) and self._has_drained()

    def _has_drained(self) -> bool:
        """Return whether a server that is told to stop has taken requests for long enough since then."""
        now = asyncio.get_running_loop().time()
        if not self._app.state.is_stopping:
            self._app.state.is_stopping = True
            self._drained_at = now + self._drain_seconds
            log.info("stopping", drain_seconds=self._drain_seconds)
        if CLOSE not in self.server_state.default_headers:
            self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]
        return self.force_exit or now >= self._drained_at

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down. Calls go on waiting for most of the time that requests have. Other waits and streams end now."""
        service: Service = self._app.state.service
        service.waiters.stop(self._call_seconds)
        service.streams.stop()
        if self._starting is None:
            await self._close_listeners()
            await super().shutdown(sockets)
            return
        self._app.state.is_closed = True  # From now on, connections refuse what comes.
        listeners, self.servers = self.servers, []
        await super().shutdown()
        for server in listeners:
            server.close()

    async def _close_listeners(self) -> None:
        """Stop listening, and take the connections that came before: a request may be under way on each of them."""
        loop = asyncio.get_running_loop()
        taken: list[socket.socket] = []
        for descriptor in [listening.fileno() for server in self.servers for listening in server.sockets]:
            with socket.socket(fileno=os.dup(descriptor)) as listening, suppress(BlockingIOError):
                while True:
                    taken.append(listening.accept()[0])
        for server in self.servers:
            server.close()
        for one in taken:
            await loop.connect_accepted_socket(self._connection, one)
