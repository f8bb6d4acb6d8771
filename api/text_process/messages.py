"""What the API and the process that reads a long body send each other: a request and, in return, a result.

A message consists of parts of bytes. The first part is a pickled object. Behind it follow the body, in a request, or
the memory of the arrays, in a result, so that neither is pickled or copied.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from api.models.catalogue import Entry
from jobs.store.records import Submission
from scoring.chunk import Chunk, Cuts
from scoring.error_codes import RequestError
from scoring.layout import Continuations, Rows, TokenIds
from scoring.sources import Sources

OUT_OF_MEMORY = 3
"""The exit code of a process that got no more memory."""

FORK, LOAD = b".", b"L"
"""What the API asks of the process: to fork a child for the connection that comes with this byte, or to load the model
of the message behind it."""

Part = bytes | memoryview

_NUMBER = struct.Struct("<q")
"""Before the parts of a message come their number and the size of each."""


@dataclass(frozen=True, slots=True)
class Read:
    """The body was read, and this is what it says."""

    value: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """The body was refused with a RequestError."""

    attributes: Mapping[str, Any]  # of the error; each is a parameter of its constructor, too

    def error(self) -> RequestError:
        return RequestError(**self.attributes)


@dataclass(frozen=True, slots=True)
class NotLoaded:
    """The body names a model that the process does not have in memory."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Failed:
    """Reading raised another exception, which is a bug."""

    traceback: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The process has ended without a result."""

    exit_code: int  # OUT_OF_MEMORY, or the negative number of the signal that ended it


Result = Read | Refused | NotLoaded | Failed | Ended


def send(connection: socket.socket, parts: Sequence[Part]) -> None:
    """Send a message over a blocking socket."""
    connection.sendall(_head(parts))
    for part in parts:
        connection.sendall(part)


async def send_async(connection: socket.socket, parts: Sequence[Part]) -> None:
    """Send a message over a socket that does not block."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, _head(parts))
    for part in parts:
        await loop.sock_sendall(connection, part)


def receive(connection: socket.socket) -> list[bytes]:
    """Receive a message over a blocking socket. Raises EOFError if the other side has closed it."""
    (count,) = _NUMBER.unpack(_receive(connection, _NUMBER.size))
    sizes = [size for (size,) in _NUMBER.iter_unpack(_receive(connection, count * _NUMBER.size))]
    return [_receive(connection, size) for size in sizes]


async def receive_async(connection: socket.socket) -> list[memoryview]:
    """Receive a message over a socket that does not block. Raises EOFError if the other side has closed it."""
    (count,) = _NUMBER.unpack(await _receive_async(connection, _NUMBER.size))
    sizes = [size for (size,) in _NUMBER.iter_unpack(await _receive_async(connection, count * _NUMBER.size))]
    return [await _receive_async(connection, size) for size in sizes]


def pack(result: Result) -> list[Part]:
    """Return the parts of a result."""
    arrays: list[pickle.PickleBuffer] = []
    written = io.BytesIO()
    _Pickler(written, pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append).dump(result)
    return [written.getvalue(), *(array.raw() for array in arrays)]


def unpack(parts: Sequence[Part]) -> Result:
    """Return the result in the parts of a message. It may have thousands of chunks, so call this in a thread."""
    result: Result = pickle.loads(parts[0], buffers=parts[1:])
    return result


class _Pickler(pickle.Pickler):
    """Pickles the chunks of a job as a few arrays, because each chunk has three small ones."""

    def reducer_override(self, value: object) -> Any:
        if not isinstance(value, Submission):
            return NotImplemented
        others = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "chunks"}
        rows = Rows.join([chunk.rows for chunk in value.chunks])
        sizes = np.array([(len(chunk.rows), chunk.work) for chunk in value.chunks], np.int64).reshape(-1, 2)
        behind = [chunk.continuations for chunk in value.chunks if chunk.continuations is not None]
        places = {n: chunk.sources.places for n, chunk in enumerate(value.chunks) if chunk.sources is not None}
        return _with_chunks, (others, rows, sizes, Continuations.join(behind) if behind else None, places)


def _with_chunks(
    others: Mapping[str, Any],
    rows: Rows,
    sizes: npt.NDArray[np.int64],
    continuations: Continuations | None,
    places: Mapping[int, TokenIds],
) -> Submission:
    cuts = Cuts.of(rows, continuations)
    chunks: list[Chunk] = []
    start = 0
    for number, (items, work) in enumerate(sizes.tolist()):
        sources = Sources(places[number]) if number in places else None
        chunks.append(Chunk(start, *cuts.part(start, start + items), work=work, sources=sources))
        start += items
    return Submission(chunks=tuple(chunks), **others)


def _head(parts: Sequence[Part]) -> bytes:
    sizes = [memoryview(part).nbytes for part in parts]
    return b"".join(map(_NUMBER.pack, (len(parts), *sizes)))


def _receive(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise EOFError
    return data


async def _receive_async(connection: socket.socket, size: int) -> memoryview:
    loop = asyncio.get_running_loop()
    received = np.empty(size, np.uint8).data  # not a bytearray, which would be filled with zeros first
    rest = received
    while rest:
        count = await loop.sock_recv_into(connection, rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return received
