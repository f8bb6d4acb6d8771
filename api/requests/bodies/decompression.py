"""Unpack a body while it arrives, in steps of bounded size whatever is sent.

A small body may cause much work: it may be a thousand times larger unpacked, and it may consist of millions of empty
members. So both are limited. A member is what gzip calls one, or a frame of zstd; a body may have several.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdDecompressor, ZstdError
else:
    from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError

from scoring.error_codes import ErrorCode, RequestError, invalid
from settings.limits import LimitSettings

PLAIN = "identity"
"""The encoding of a body that is not compressed."""

COMPRESSED_PIECE_BYTES = 2**14
"""The compressed bytes that a decompressor gets at a time. It copies what it leaves, at the end of each member."""

FREE_BYTES = 2**24
"""The unpacked bytes for which the ratio of compression is not checked."""

_GZIP_ONLY = 16 + zlib.MAX_WBITS

_WINDOW_LOG = 23
"""A frame of zstd may refer back 8 MiB at most (RFC 9659), which is the memory that its decompressor takes."""


class _GzipMember:
    """What unpacks one member, as Python's module for zstd has it."""

    def __init__(self) -> None:
        self._object = zlib.decompressobj(_GZIP_ONLY)

    @property
    def eof(self) -> bool:
        return self._object.eof

    @property
    def unused_data(self) -> bytes:
        return self._object.unused_data

    @property
    def needs_input(self) -> bool:
        """Whether it needs further bytes before it gives any."""
        return not self._object.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._object.decompress(self._object.unconsumed_tail + data, max_length)


_new_frame = partial(ZstdDecompressor, options={DecompressionParameter.window_log_max: _WINDOW_LOG})
_MEMBERS: dict[str, Callable[[], _GzipMember | ZstdDecompressor]] = {
    "gzip": _GzipMember,
    "x-gzip": _GzipMember,
    "zstd": _new_frame,
}


class Decompressor:
    """Unpacks a body with one or more members. Every method raises RequestError.

    encoding: its content encoding; one that is not known, or several, are UNSUPPORTED_MEDIA_TYPE. step_bytes: the most
    bytes that are unpacked at a time.
    """

    def __init__(self, encoding: str, limits: LimitSettings, step_bytes: int) -> None:
        if encoding not in _MEMBERS:
            raise RequestError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send the body plain, or packed with gzip or zstd")
        self._name = encoding.removeprefix("x-")
        self._new_member = _MEMBERS[encoding]
        # Zeros may stand behind a member of gzip, to fill a block of a disk or a tape.
        self._padding = b"\0" if self._name == "gzip" else b""
        self._member = self._new_member()
        self._members = 1
        self._limits = limits
        self._step_bytes = step_bytes
        self._packed_bytes = self._unpacked_bytes = 0

    def feed(self, part: bytes) -> Iterator[bytes]:
        """Yield what further bytes unpack to, in pieces of at most ``step_bytes``; a piece may be empty."""
        self._packed_bytes += len(part)
        for start in range(0, len(part), COMPRESSED_PIECE_BYTES):
            rest = part[start : start + COMPRESSED_PIECE_BYTES]
            while rest or not (self._member.eof or self._member.needs_input):
                if self._member.eof:
                    rest = rest.lstrip(self._padding)
                    if not rest:
                        break
                    self._begin_member()
                try:
                    data = self._member.decompress(rest, self._step_bytes)
                except (zlib.error, ZstdError) as error:
                    raise invalid(f"the body is not valid {self._name}: {error}") from None
                rest = self._member.unused_data if self._member.eof else b""
                self._unpacked_bytes += len(data)
                self._check_ratio()
                yield data

    def finish(self) -> None:
        """Check that the body is complete."""
        if not self._member.eof:
            raise invalid(f"the {self._name} body is cut off")

    def _begin_member(self) -> None:
        self._members += 1
        if self._members > self._limits.max_gzip_members:
            message = f"the compressed body has more than the {self._limits.max_gzip_members} members that it may have"
            raise RequestError(ErrorCode.REQUEST_TOO_LARGE, message, limit="max_gzip_members")
        self._member = self._new_member()

    def _check_ratio(self) -> None:
        ratio = self._limits.max_gzip_ratio
        if self._unpacked_bytes > FREE_BYTES + ratio * self._packed_bytes:
            message = f"the compressed body unpacks to more than {ratio} times its size: send it plain"
            raise RequestError(ErrorCode.REQUEST_TOO_LARGE, message, limit="max_gzip_ratio")
