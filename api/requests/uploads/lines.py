"""Unpack and hash a body while it arrives, and split it into lines, in bounded memory whatever is sent.

A small body may cause much work: a compressed one may be long (api/requests/bodies/decompression.py), and a line may
consist of its end alone. So all of this is counted, and each step is bounded in all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from api.requests.bodies.decompression import PLAIN, Decompressor
from api.requests.bodies.receiving import too_large
from api.requests.headers.idempotency import body_hasher
from scoring.error_codes import ErrorCode, RequestError
from settings.limits import LimitSettings

STEP_BYTES = 2**18
"""The uncompressed bytes that are handled at a time: a compressed body may be a thousand times larger uncompressed."""

STEP_PIECES = 512
"""The calls of the decompressor in a step. Each returns the end of a member, or up to :data:`STEP_BYTES`."""

_CONTENT = re.compile(rb"[^ \t\r\n]")
"""What a line has unless it is blank."""


class LineReader:
    """Splits a body into lines. It blocks on the processor, so use it in a thread. Every method raises RequestError.

    encoding: the body's content encoding. max_lines: the limit for the number of lines, blank ones
    included.
    """

    def __init__(self, route: str, limits: LimitSettings, *, encoding: str, max_lines: int) -> None:
        self.number = 0  # of lines so far
        self._limits = limits
        self._max_lines = max_lines
        self._decompressor = None if encoding == PLAIN else Decompressor(encoding, limits, STEP_BYTES)
        self._hasher = body_hasher(route)
        self._received_bytes = 0
        self._bytes = 0  # uncompressed
        self._rest = bytearray()

    @property
    def body_hash(self) -> str:
        """The hash of the uncompressed bytes so far, for :class:`jobs.store.records.Idempotency`."""
        return self._hasher.hexdigest()

    def feed(self, part: bytes) -> Iterator[list[tuple[int, bytes]]]:
        """Yield the lines that are complete with further bytes, each with its number, counted from 1.

        Blank lines are counted and left out. Yields after each bounded step, even without lines, so that other
        requests can run in between.
        """
        self._received_bytes += len(part)
        self._check_size(self._received_bytes)
        lines: list[tuple[int, bytes]] = []
        size = pieces = 0
        for data in self._uncompressed(part):
            self._bytes += len(data)
            self._check_size(self._bytes)
            self._hasher.update(data)
            lines += self._cut(data)
            size += len(data)
            pieces += 1
            if size >= STEP_BYTES or pieces == STEP_PIECES:
                yield lines
                lines, size, pieces = [], 0, 0
        if pieces:
            yield lines

    def finish(self) -> list[tuple[int, bytes]]:
        """Return the last line if no line end follows it."""
        if self._decompressor is not None:
            self._decompressor.finish()
        return list(self._cut(b"\n")) if self._rest else []

    def _uncompressed(self, part: bytes) -> Iterator[bytes]:
        if self._decompressor is not None:
            return self._decompressor.feed(part)
        return (part[start : start + STEP_BYTES] for start in range(0, len(part), STEP_BYTES))

    def _cut(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        # Nothing is done for each blank line: a small file of gzip holds millions of them.
        ends = data.count(b"\n")
        if self.number + ends > self._max_lines:
            message = f"the body has more than the {self._max_lines} lines that it may have, blank ones included"
            raise _refused("max_items_per_upload", message)
        start = 0
        if self._rest and ends:
            start = data.index(b"\n") + 1
            line = bytes(self._rest) + data[: start - 1]
            self._rest.clear()
            self._count_line(len(line))
            if _CONTENT.search(line):
                yield self.number, line
        while (content := _CONTENT.search(data, start)) is not None:
            end = data.find(b"\n", content.start())
            if end < 0:
                break
            begin = data.rfind(b"\n", start, content.start()) + 1 or start
            if begin > start:
                self._count_blank(data, start, begin)
            self._count_line(end - begin)
            yield self.number, data[begin:end]
            start = end + 1
        last = max(start, data.rfind(b"\n", start) + 1)
        self._count_blank(data, start, last)
        self._rest += data[last:]
        self._check_line(len(self._rest), self.number + 1)

    def _count_line(self, size: int) -> None:
        self.number += 1
        self._check_line(size, self.number)

    def _count_blank(self, data: bytes, start: int, end: int) -> None:
        """Count the lines between two places. They are blank, and short unless all of them together are long."""
        if end - start <= self._limits.max_line_bytes:
            self.number += data.count(b"\n", start, end)
            return
        for line in data[start:end].split(b"\n")[:-1]:
            self._count_line(len(line))

    def _check_line(self, size: int, number: int) -> None:
        if size > self._limits.max_line_bytes:
            message = f"line {number} has more than the {self._limits.max_line_bytes} bytes that a line may have"
            raise _refused("max_line_bytes", message)

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_upload_bytes:
            raise too_large(self._limits, "max_upload_bytes")


def _refused(setting: str, message: str) -> RequestError:
    return RequestError(ErrorCode.REQUEST_TOO_LARGE, message, limit=setting)
