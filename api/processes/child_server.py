"""The server of one of several API processes."""

from __future__ import annotations

import asyncio
import socket

from fastapi import FastAPI

from api.processes.parent_channel import ParentChannel
from api.server.server import Server
from api.service import Service
from api.siblings.membership import Siblings


class ChildServer(Server):
    """A server that tells the parent when it serves, and shows that it lives and what its requests wait for."""

    def __init__(
        self,
        app: FastAPI,
        siblings: Siblings,
        parent: ParentChannel,
        *,
        shutdown_seconds: int,
        drain_seconds: float = 0.0,
    ) -> None:
        super().__init__(app, shutdown_seconds=shutdown_seconds, drain_seconds=drain_seconds)
        self._siblings = siblings
        self._parent = parent

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until stopped, in contact with the parent."""
        async with self._parent.open():
            heartbeat = asyncio.create_task(self._siblings.keep_heartbeat())
            try:
                await super().serve(sockets)
            finally:
                heartbeat.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take requests."""
        await super().startup(sockets)
        self._parent.say_serving()

    async def on_tick(self, counter: int) -> bool:
        """Show how many jobs are awaited. Returns whether the server is to stop."""
        service: Service = self._app.state.service
        self._siblings.set_awaited_jobs(len(service.waiters.job_ids))
        return await super().on_tick(counter)
