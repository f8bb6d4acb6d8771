"""A body of lines as it comes: unpacked, hashed and cut into lines, in bounded memory whatever is sent."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from api.requests.body import too_large
from api.requests.idempotency import body_hasher
from scoring.error_codes import ErrorCode, RequestError

STEP_BYTES = 2**18
"""Unpacked bytes that are handled at a time: a small packed body may hold a thousand times as many."""

_GZIP_ONLY = 16 + zlib.MAX_WBITS


class Lines:
    """Blocks on the processor: to be used in a thread. Every method raises RequestError.

    packed: the body is gzip, of one member or several; max_bytes: of all of it, packed and unpacked alike;
    max_line_bytes: of a line without its end. number: how many lines there were so far.
    """

    def __init__(self, route: str, *, packed: bool, max_bytes: int, max_line_bytes: int) -> None:
        self.number = 0
        self._max_bytes = max_bytes
        self._max_line_bytes = max_line_bytes
        self._gzip = zlib.decompressobj(_GZIP_ONLY) if packed else None
        self._hasher = body_hasher(route)
        self._packed_bytes = self._bytes = 0
        self._rest = bytearray()

    @property
    def body_hash(self) -> str:
        """Of the unpacked bytes so far, as :class:`jobs.store.records.Idempotency` has it."""
        return self._hasher.hexdigest()

    def feed(self, part: bytes) -> Iterator[list[tuple[int, bytes]]]:
        """The lines that are complete with further bytes, each with its number, which counts from 1.

        After every step, also one without lines, so that others may take turns.
        """
        self._packed_bytes += len(part)
        self._check_size(self._packed_bytes)
        for data in self._unpacked(part):
            self._bytes += len(data)
            self._check_size(self._bytes)
            self._hasher.update(data)
            yield list(self._cut(data))

    def finish(self) -> list[tuple[int, bytes]]:
        """The last line, if nothing ends it."""
        if self._gzip is not None and not self._gzip.eof:
            raise RequestError(ErrorCode.INVALID_REQUEST, "the gzip body is cut off")
        return list(self._cut(b"\n")) if self._rest else []

    def _unpacked(self, part: bytes) -> Iterator[bytes]:
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
