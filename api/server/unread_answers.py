"""What the client of a connection has not read of its answers: it counts in the budget, and must not stay for long."""

from __future__ import annotations

import asyncio

from api.budget import Use

READ_BYTES_PER_SECOND = 2**14
"""A client that has to be waited for reads so many bytes a second at least, or is given up."""


class UnreadAnswers:
    """The bytes that one connection has for its client."""

    def __init__(self, transport: asyncio.Transport, held: Use, most_seconds: float) -> None:
        """held: where they are counted. most_seconds: how late a client may be."""
        self._transport = transport
        self._held = held
        self._most_seconds = most_seconds
        self._bytes = 0  # as they are counted
        self._written = 0  # in all
        self._looked_at: tuple[float, int] | None = None  # when was looked, and what was read; None if it need not read
        self._late = 0.0  # seconds for which the client was waited for, less those that it may take for what it read

    def write(self, data: bytes) -> None:
        """Send further bytes."""
        self._transport.write(data)
        self._written += len(data)
        self._count(self._transport.get_write_buffer_size())

    def is_overdue(self, now: float, *, must_read: bool) -> bool:
        """Return whether the client reads too slowly. now: in seconds. must_read: whether it is waited for."""
        self._count(self._transport.get_write_buffer_size())
        if not must_read:
            self._looked_at, self._late = None, 0.0
            return False
        read = self._written - self._bytes
        if self._looked_at is not None:
            before, read_before = self._looked_at
            self._late = max(0.0, self._late + now - before - (read - read_before) / READ_BYTES_PER_SECOND)
        self._looked_at = now, read
        return self._late >= self._most_seconds

    def forget(self) -> None:
        """Give everything back, because the connection has ended."""
        self._count(0)

    def _count(self, unread: int) -> None:
        if unread != self._bytes:
            self._held.add(None, unread - self._bytes)
            self._bytes = unread
