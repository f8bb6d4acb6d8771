"""An attack, and what it sends over one connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random

from tests.hostile.document import Operation


class Ending(Enum):
    """What the client does once it has sent everything."""

    READ = "reads the answers"
    STALL = "reads nothing for a while, then reads the answers"
    ABORT = "resets the connection without reading"
    CLOSE = "closes its sending side, then reads"


@dataclass(frozen=True)
class Plan:
    """What is sent over a connection. A piece may be made only when it is sent, so that large ones need no memory."""

    pieces: Iterable[bytes]
    requests: int = 1  # requests that the pieces hold, each of which may be answered
    slowly: bool = False  # whether there is a pause before each piece but the first
    ending: Ending = Ending.READ
    connections: int = 1  # that are opened at once, each of which does all of this
    only_head: bool = False  # the answer has no body, as for HEAD


@dataclass(frozen=True)
class Caller:
    """What a hostile client has: perhaps a key, a job of its own, and the id of a stranger's job."""

    key: str | None
    job_id: str
    foreign_job_id: str
    waiting_job_id: str = "job_0"  # of a job of its own that no worker takes


@dataclass(frozen=True)
class Attack:
    """One row of the table. The same random numbers make the same plan."""

    kind: str  # what is wrong with what it sends, such as `too long`
    target: str  # what it attacks, such as `post /v1/score: query`
    name: str  # how it does that
    plan: Callable[[Random, Caller], Plan] = field(repr=False)
    operation: Operation | None = None  # whose documented answers are the only right ones; None: any error envelope
    slow: bool = False  # whether it holds its connection for seconds
    keyed: bool = False  # whether it is pointless without a valid key
    heavy: bool = False  # whether it sends, or makes the service read or store, more than about a megabyte

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}, at {self.target}"


@dataclass(frozen=True)
class Request:
    """A request before it is encoded. Names, values and the target are sent as they are, valid or not."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""

    def having(self, name: bytes, *values: bytes) -> Request:
        """Return the request with these values of a header, instead of those that it has."""
        others = tuple(header for header in self.headers if header[0].lower() != name.lower())
        return replace(self, headers=others + tuple((name, value) for value in values))

    def head(self) -> bytes:
        """Return the request line and the headers, with their end."""
        lines = [b"%b %b HTTP/1.1" % (self.method, self.target), *(b"%b: %b" % header for header in self.headers)]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def encode(self) -> bytes:
        """Return the bytes of the whole request, with the length of its body."""
        declared = {name.lower() for name, _ in self.headers}
        if self.body and not declared & {b"content-length", b"transfer-encoding"}:
            return self.having(b"Content-Length", str(len(self.body)).encode()).head() + self.body
        return self.head() + self.body


def request_of(operation: Operation, caller: Caller, body: bytes | None = None) -> Request:
    """Return a valid request of an operation, or one with another body."""
    headers: list[tuple[bytes, bytes]] = [(b"Host", b"hostile.example")]
    if caller.key is not None:
        headers.append((b"Authorization", b"Bearer " + caller.key.encode()))
    if body is None:
        body = operation.example
    if body:
        headers.append((b"Content-Type", operation.media_type.encode()))
    target = operation.path.replace("{job_id}", caller.job_id).replace("{delivery_id}", "msg_" + "0" * 32)
    target = target.replace("{file_id}", "file_" + "0" * 32).replace("{batch_id}", "batch_" + "0" * 32)
    return Request(operation.method.upper().encode(), target.encode(), tuple(headers), body or b"")


def once(request: Request) -> Plan:
    """Return the plan that sends a request and reads its answer."""
    return Plan([request.encode()], only_head=request.method == b"HEAD")
