"""uvicorn's server with this service's connections."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import structlog
import uvicorn
from fastapi import FastAPI

from api.server.connection import Connection
from api.server.heap import keep_little_memory
from api.service import Service

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

log = structlog.stdlib.get_logger("api")


class Server(uvicorn.Server):
    """A server that closes connections that are overdue, and whose shutdown ends all waits in time."""

    def __init__(self, app: FastAPI, host: str = "127.0.0.1", port: int = 0, *, shutdown_seconds: int) -> None:
        """shutdown_seconds: how long requests in progress may take to finish when the server stops."""
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
        self._call_seconds = max(0.0, shutdown_seconds - ANSWER_SECONDS)  # how long calls wait on during a shutdown

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, so that many connections at once, on which nothing need come, keep nobody waiting.

        libuv accepts one connection of each listening socket in a turn, and a turn in which others are served may take
        milliseconds. So each socket is listened to several times.
        """
        keep_little_memory()
        sys.setswitchinterval(SWITCH_SECONDS)
        await super().startup(sockets)
        for descriptor in [listening.fileno() for server in self.servers for listening in server.sockets]:
            for _ in range(ACCEPTED_IN_A_TURN - 1):
                again = socket.socket(fileno=os.dup(descriptor))
                server = await asyncio.get_running_loop().create_server(
                    self._connection, sock=again, backlog=self.config.backlog
                )
                self.servers.append(server)

    def _connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        """Look for connections that are overdue. Returns whether the server is to stop."""
        if counter % WATCH_TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                assert isinstance(connection, Connection)
                try:
                    connection.close_if_overdue(now)
                except Exception:  # The other connections, and the process, do not depend on it.
                    log.exception("could not close a connection")
                    connection.transport.abort()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down. Calls go on waiting for most of the time that requests have. Other waits and streams end now."""
        service: Service = self._app.state.service
        service.waiters.stop(self._call_seconds)
        service.followed_jobs.stop()
        service.followed_batches.stop()
        await super().shutdown(sockets)
