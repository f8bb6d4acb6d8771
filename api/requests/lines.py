"""Decompress and hash a body while it arrives, and split it into lines, in bounded memory whatever is sent."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from api.requests.body import too_large
from api.requests.idempotency import body_hasher
from scoring.error_codes import ErrorCode, RequestError

STEP_BYTES = 2**18
"""The uncompressed bytes that are handled at a time: a compressed body may be a thousand times larger uncompressed."""

_GZIP_ONLY = 16 + zlib.MAX_WBITS


class LineReader:
    """Splits a body into lines. It blocks on the processor, so use it in a thread. Every method raises RequestError.

    gzip: the body is gzip, with one or more members. max_bytes: the limit for both the compressed and the uncompressed
    body. max_line_bytes: the limit for a line without its line end.
    """

    def __init__(self, route: str, *, gzip: bool, max_bytes: int, max_line_bytes: int) -> None:
        self.number = 0  # of lines so far
        self._max_bytes = max_bytes
        self._max_line_bytes = max_line_bytes
        self._gzip = zlib.decompressobj(_GZIP_ONLY) if gzip else None
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

        Yields after each bounded step, even without lines, so that other requests can run in between.
        """
        self._received_bytes += len(part)
        self._check_size(self._received_bytes)
        for data in self._uncompressed(part):
            self._bytes += len(data)
            self._check_size(self._bytes)
            self._hasher.update(data)
            yield list(self._cut(data))

    def finish(self) -> list[tuple[int, bytes]]:
        """Return the last line if no line end follows it."""
        if self._gzip is not None and not self._gzip.eof:
            raise RequestError(ErrorCode.INVALID_REQUEST, "the gzip body is cut off")
        return list(self._cut(b"\n")) if self._rest else []

    def _uncompressed(self, part: bytes) -> Iterator[bytes]:
        if self._gzip is None:
            yield from (part[start : start + STEP_BYTES] for start in range(0, len(part), STEP_BYTES))
            return
        while part:
            if self._gzip.eof:
                self._gzip = zlib.decompressobj(_GZIP_ONLY)
            try:
                data = self._gzip.decompress(part, STEP_BYTES)
            except zlib.error as error:
                raise RequestError(ErrorCode.INVALID_REQUEST, f"the body is not valid gzip: {error}") from None
            part = self._gzip.unused_data if self._gzip.eof else self._gzip.unconsumed_tail
            yield data

    def _cut(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        *ended, rest = data.split(b"\n")
        for line in ended:
            if self._rest:
                line = bytes(self._rest) + line
                self._rest.clear()
            self.number += 1
            self._check_line(len(line), self.number)
            yield self.number, line
        self._rest += rest
        self._check_line(len(self._rest), self.number + 1)

    def _check_line(self, size: int, number: int) -> None:
        if size > self._max_line_bytes:
            message = f"line {number} has more than the {self._max_line_bytes} bytes that a line may have"
            raise RequestError(ErrorCode.REQUEST_TOO_LARGE, message)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise too_large(self._max_bytes)
