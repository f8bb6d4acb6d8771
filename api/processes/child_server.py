"""The server of one of several API processes."""

from __future__ import annotations

import asyncio
import socket

from fastapi import FastAPI

from api.server.server import Server
from api.service import Service
from api.siblings import Siblings


class ChildServer(Server):
    """A server that shows that it lives, from when it serves on, and what its requests have in use."""

    def __init__(self, app: FastAPI, siblings: Siblings, *, shutdown_seconds: int, drain_seconds: float = 0.0) -> None:
        super().__init__(app, shutdown_seconds=shutdown_seconds, drain_seconds=drain_seconds)
        self._siblings = siblings
        self._heartbeat: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until stopped."""
        try:
            await super().serve(sockets)
        finally:
            if self._heartbeat is not None:
                self._heartbeat.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take requests."""
        await super().startup(sockets)
        self._heartbeat = asyncio.create_task(self._siblings.keep_heartbeat())

    async def on_tick(self, counter: int) -> bool:
        """Show what the requests have in use. Returns whether the server is to stop."""
        service: Service = self._app.state.service
        self._siblings.set_in_use(service.metrics.in_use())
        return await super().on_tick(counter)
