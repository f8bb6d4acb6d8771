"""uvicorn's server with this service's connections."""

from __future__ import annotations

import asyncio
import socket

import structlog
import uvicorn
from fastapi import FastAPI

from api.server.connection import Connection
from api.service import Service

WATCH_TICKS = 5
"""The server looks for connections that are overdue at every so many ticks of uvicorn's, which are 0.1 s apart."""

log = structlog.stdlib.get_logger("api")


class Server(uvicorn.Server):
    """A server that closes connections that are overdue, and whose shutdown does not wait for those who wait."""

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
        """Answer the requests that wait for jobs as timed out, then shut down."""
        service: Service = self._app.state.service
        service.waiters.stop()
        await super().shutdown(sockets)
