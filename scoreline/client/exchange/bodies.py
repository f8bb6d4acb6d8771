"""Bodies of requests. Each can be sent more than once, with the same bytes each time."""

from __future__ import annotations

import json
import math
import re
import tempfile
import uuid
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol

from scoreline.client.errors import InvalidRequest

SPOOL_BYTES = 8 * 2**20
"""A body that is made bit by bit is kept for repetitions: up to this size in memory, and beyond in a temporary file."""

READ_BYTES = 2**16

MAX_NAMED = 10
"""Of the cells without a text, in one message."""


_MISSING = frozenset({"NAType", "NaTType"})
"""The types of the values of pandas that stand for a missing one: ``pd.NA`` and ``pd.NaT``."""


class Body(Protocol):
    """What is sent with a request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that describe it."""

    @property
    def is_streamed(self) -> bool:
        """Whether it may take long to send, so that only silence counts as an error."""

    def content(self) -> bytes | Iterator[bytes]:
        """Return it from its beginning."""

    def async_content(self) -> bytes | AsyncIterator[bytes]:
        """Return it from its beginning."""


class ItemsError(Exception):
    """The items of a body could not be taken from where the caller has them. Sending the body again would lose some."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error  # what the caller's iterable has raised


class EncodedJson:
    """A value that is JSON already."""

    headers: ClassVar = {"Content-Type": "application/json"}
    is_streamed = False

    def __init__(self, encoded: bytes) -> None:
        self._bytes = encoded

    def content(self) -> bytes:
        return self._bytes

    def async_content(self) -> bytes:
        return self._bytes


class JsonBody(EncodedJson):
    """A value as JSON. Arrays, columns and numbers of NumPy, pandas, Arrow and the like count as lists and numbers."""

    def __init__(self, value: object) -> None:
        super().__init__(encode_json(value))


class PackedLines:
    """JSON lines, compressed with gzip while they are made, of a first line and one line for each item."""

    headers: ClassVar = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
    is_streamed = True

    def __init__(self, first: object, items: Iterable[object] | AsyncIterable[object]) -> None:
        self._items: Iterator[object] | AsyncIterator[object]
        self._items = aiter(items) if isinstance(items, AsyncIterable) else iter(items)
        self._first: object | None = first
        self._packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
        self._sent: IO[bytes] = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115 (open for as long as this)
        self._is_complete = False

    def content(self) -> Iterator[bytes]:
        """Yield what was made before, and then the rest of the lines. Raises ItemsError."""
        if isinstance(self._items, AsyncIterator):
            raise TypeError("the items of a Client are an iterable; an AsyncClient takes asynchronous ones, too")
        yield from self._made_before()
        for item in self._taken(self._items):
            if packed := self._pack(item):
                yield packed
        yield from self._end()

    async def async_content(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body, for a client that awaits."""
        for packed in self._made_before():
            yield packed
        if isinstance(self._items, AsyncIterator):
            async for item in self._taken_async(self._items):
                if packed := self._pack(item):
                    yield packed
        else:
            for item in self._taken(self._items):
                if packed := self._pack(item):
                    yield packed
        for packed in self._end():
            yield packed

    @staticmethod
    def _taken(items: Iterator[object]) -> Iterator[object]:
        while True:
            try:
                item = next(items)
            except StopIteration:
                return
            except Exception as error:
                raise ItemsError(error) from error
            yield item

    @staticmethod
    async def _taken_async(items: AsyncIterator[object]) -> AsyncIterator[object]:
        while True:
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
            except Exception as error:
                raise ItemsError(error) from error
            yield item

    def _made_before(self) -> Iterator[bytes]:
        if self._first is not None:
            first, self._first = self._first, None
            self._pack(first)
        self._sent.seek(0)
        while made := self._sent.read(READ_BYTES):
            yield made

    def _pack(self, line: object) -> bytes:
        return self._keep(self._packer.compress(encode_json(line) + b"\n"))

    def _keep(self, packed: bytes) -> bytes:
        """Keep bytes before they are sent: the sending may break off at any point."""
        self._sent.seek(0, 2)
        self._sent.write(packed)
        return packed

    def _end(self) -> Iterator[bytes]:
        if not self._is_complete:
            self._is_complete = True
            yield self._keep(self._packer.flush())


class FormFile:
    """A file as a form, as browsers send it. The file is read again for each repetition, from where it stands now."""

    is_streamed = True

    def __init__(self, file: IO[bytes], filename: str, fields: Mapping[str, str]) -> None:
        self._file = file
        self._start = file.tell()
        boundary = uuid.uuid4().hex
        parts = [
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in fields.items()
        ]
        quoted = re.sub(r'["\r\n\\]', "_", filename)
        parts.append(
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{quoted}"\r\n'
            "Content-Type: application/jsonl\r\n\r\n"
        )
        self._before = "".join(parts).encode()
        self._after = f"\r\n--{boundary}--\r\n".encode()
        self.headers: Mapping[str, str] = {"Content-Type": f"multipart/form-data; boundary={boundary}"}

    def content(self) -> Iterator[bytes]:
        yield self._before
        self._file.seek(self._start)
        while piece := self._file.read(READ_BYTES):
            yield piece
        yield self._after

    async def async_content(self) -> AsyncIterator[bytes]:
        for piece in self.content():
            yield piece


def encode_json(value: object) -> bytes:
    """Return a value as JSON. Raises InvalidRequest for a missing value, and TypeError for what can't be sent."""
    try:
        return json.dumps(value, default=plain, allow_nan=False).encode()
    except (ValueError, TypeError):
        place = _place_of_missing(value)
        if place is None:
            raise
        message = f"{place} is missing or not a finite number (NaN, infinity); fill it or leave it out"
        raise InvalidRequest("invalid_request", message, param=place) from None


def plain(value: Any) -> object:
    """Return an array, a column or a number of another library as plain Python. Raises TypeError for all else."""
    if isinstance(value, Path):
        return str(value)
    check_is_list(value, "can't be sent as a text or as token ids")
    for method in ("tolist", "to_pylist", "to_list", "as_py", "item"):
        if callable(convert := getattr(value, method, None)):
            return convert()
    if isinstance(value, Iterable):
        return list(value)
    raise _wrong_type(value, "can't be sent as a text or as token ids")


def check_column(value: Any, name: str) -> None:
    """Raise InvalidRequest if a column has cells without a text. In a list, an empty text is meant."""
    if hasattr(value, "columns") or not any(hasattr(value, method) for method in ("tolist", "to_pylist", "to_list")):
        return
    cells = plain(value)
    places = [place for place, cell in enumerate(cells) if is_blank(cell)] if isinstance(cells, list) else []
    if places:
        others = ", ".join(f"{name}[{place}]" for place in places[1:MAX_NAMED])
        more = f", and so are {len(places) - 1:,} more, such as {others}" if others else ""
        message = (
            f"{name}[{places[0]}] is missing or has no text{more}: leave such rows out, or give a list, in which an "
            "empty text is scored"
        )
        raise InvalidRequest("invalid_request", message, param=f"{name}[{places[0]}]")


def is_blank(cell: object) -> bool:
    """Return whether a cell is missing, or a text with nothing but blanks."""
    if isinstance(cell, str):
        return not cell.strip()
    return cell is None or type(cell).__name__ in _MISSING or (isinstance(cell, float) and math.isnan(cell))


def check_is_list(value: object, problem: str) -> None:
    """Raise TypeError for a table, a mapping, a set or bytes. What iterating over them gives is not what is meant.

    A table gives the names of its columns, for example. problem: what is wrong with such a value.
    """
    if hasattr(value, "columns"):
        raise _wrong_type(value, f"{problem}; name one of its columns")
    if isinstance(value, bytes | bytearray | Mapping | Set):
        raise _wrong_type(value, problem)


def _wrong_type(value: object, problem: str) -> TypeError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return TypeError(f"a {kind} {problem}")


def _place_of_missing(value: object, place: str = "") -> str | None:
    """Return where a value has a number that JSON does not have, such as ``items[3]``."""
    if isinstance(value, float):
        return None if math.isfinite(value) else place or "the value"
    if isinstance(value, str | int | None):
        return None
    if isinstance(value, Mapping):
        parts = [(f"{place}.{key}" if place else str(key), part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{place}[{index}]", part) for index, part in enumerate(value)]
    elif type(value).__name__ in _MISSING:
        return place or "the value"
    else:
        try:
            value = plain(value)
        except TypeError:
            return None  # It can't be sent, for another reason.
        return _place_of_missing(value, place)
    return next((found for where, part in parts if (found := _place_of_missing(part, where))), None)
