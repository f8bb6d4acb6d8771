"""Files: what batches read and write."""

from __future__ import annotations

import os
from collections import deque
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import quote

from scoreline.client.batch_objects import File
from scoreline.client.errors import Unreachable
from scoreline.client.exchange.bodies import FormFile
from scoreline.client.exchange.flow import Flow, Give, Iteration, Next, Reading, Request, Sleep, Stream
from scoreline.client.exchange.sending import Repetitions, Service, idempotency, listed, opened, send

PAGE_FILES = 1_000
"""The files of a page of a list."""

FileOrId = File | str


def file_path(file: FileOrId, rest: str = "") -> str:
    """Return the path of a file."""
    return f"/v1/files/{quote(file if isinstance(file, str) else file.id, safe='')}{rest}"


def upload_file(
    service: Service,
    content: bytes | str | os.PathLike[str] | IO[bytes],
    *,
    filename: str | None = None,
    expires_after: int | None = None,
    idempotency_key: str | None = None,
) -> Flow[File]:
    """Upload a file of requests for a batch.

    content: the bytes, a path, or an open file that can be read again from where it stands. filename: its name at the
    service. expires_after: seconds after which it is deleted if no open batch reads it. idempotency_key: makes it safe
    to send the file again after an error.

    >>> line = '{"custom_id": "a", "method": "POST", "url": "/v1/score", "body": {}}'
    >>> file = client.upload_file(line.encode(), filename="requests.jsonl")
    >>> (file.filename, file.bytes)
    ('requests.jsonl', 68)
    """
    fields = {"purpose": "batch"}
    if expires_after is not None:
        fields |= {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(expires_after)}
    with ExitStack() as opened_files:
        name = "requests.jsonl"
        if isinstance(content, bytes):
            file: IO[bytes] = BytesIO(content)
        elif isinstance(content, str | os.PathLike):
            file = opened_files.enter_context(Path(content).open("rb"))
            name = Path(content).name
        else:
            file = content
        body = FormFile(file, filename or name, fields)
        request = Request("POST", "/v1/files", File.read, headers=idempotency(idempotency_key), body=body)
        return (yield from send(service, request))


def files(
    service: Service,
    *,
    purpose: Literal["batch", "batch_output"] | None = None,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
    page_files: int = PAGE_FILES,
) -> Iteration[File]:
    """Yield files, the newest first. The list is read page by page.

    purpose: ``"batch"``: only those that were uploaded; ``"batch_output"``: only those that batches wrote. order:
    ``"asc"``: the oldest first. after: the id of a file: begin behind it. page_files: files to read at a time.
    """
    params = {"limit": page_files, "order": order, "purpose": purpose}
    yield from listed(service, "/v1/files", File.read, params, after)


def get_file(service: Service, file: FileOrId) -> Flow[File]:
    """Return what is known of a file."""
    return (yield from send(service, Request("GET", file_path(file), File.read)))


def file_lines(service: Service, file: FileOrId) -> Iteration[str]:
    """Yield the lines of a file, read bit by bit. If the connection breaks off, reading goes on where it was."""
    lines = Lines(service, file)
    while (line := (yield from lines.next())) is not None:
        yield Give(line)


def delete_file(service: Service, file: FileOrId) -> Flow[None]:
    """Delete a file. One that an open batch reads can't be deleted: that raises Conflict."""
    yield from send(service, Request("DELETE", file_path(file), lambda _: None, gone_is_done=True))


class Lines:
    """A file that is read line by line, and opened again if the connection breaks off.

    Only a line feed ends a line: other characters that Unicode counts as ends of lines may stand within a line of JSON.
    """

    def __init__(self, service: Service, file: FileOrId) -> None:
        self._service = service
        self._path = file_path(file, "/content")
        self._stream: Stream | None = None
        self._ready: deque[bytes] = deque()  # lines that have come and were not returned yet
        self._begun: list[bytes] = []  # what has come of the line behind them
        self._read = 0  # lines that were returned
        self._repetitions: Repetitions | None = None

    def next(self) -> Flow[str | None]:
        """Return the next line, or None at the end of the file."""
        while True:
            try:
                stream = self._stream or (yield from self._open())
                line = yield from self._next_of(stream)
                self._read += 1
                self._repetitions = None
                return None if line is None else line.removesuffix(b"\r").decode(errors="replace")
            except Unreachable as error:
                self._stream = None
                self._repetitions = self._repetitions or Repetitions(self._service.window(patient=True))
                pause = self._repetitions.pause_after(error)
                if pause is None:
                    raise
            yield from Sleep(pause)

    def _open(self) -> Flow[Stream]:
        """Open the file behind the lines that were returned."""
        request: Request[Any] = Request("GET", self._path)
        stream = yield from opened(self._service, request, Reading.CHUNKS, silence=self._service.timeout)
        self._ready.clear()
        self._begun.clear()
        for _ in range(self._read):
            yield from self._next_of(stream)
        self._stream = stream
        return stream

    def _next_of(self, stream: Stream) -> Flow[bytes | None]:
        """Return the next line of a stream, or None at its end. The last line may have no end."""
        while not self._ready:
            chunk: bytes | None = yield from Next(stream)
            if chunk is None:
                rest = b"".join(self._begun)
                self._begun.clear()
                return rest or None
            begun, *others = chunk.split(b"\n")
            self._begun.append(begun)
            for piece in others:
                self._ready.append(b"".join(self._begun))
                self._begun = [piece]
        return self._ready.popleft()
