"""Operations as *flows*: generators that yield what is to be done on the network, and receive its outcome.

A flow does no input or output by itself. It yields commands, and a *driver* carries them out: one driver blocks, the
other one awaits. So every operation is written once, for both clients.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from scoreline.client.exchange.bodies import Body

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole answer to a request."""

    status: int
    headers: Mapping[str, str]  # the names are in lower case
    content: bytes


def _unchanged(raw: Any) -> Any:
    return raw


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """A request, and what its answer means."""

    method: str
    path: str
    parse: Callable[[Any], T] = _unchanged  # from the JSON of a successful answer
    params: Mapping[str, str | int] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    seconds: float | None = None  # how long the answer may take; None: as long as the client allows
    is_repeatable: bool = True  # whether sending it twice does what sending it once does
    gone_is_done: bool = False  # whether a repetition that finds nothing shows that the first request was carried out


class Reading(Enum):
    """How a stream is read."""

    EVENTS = "events"  # as server-sent events
    CHUNKS = "chunks"  # as bytes


class Command(Generic[T]):
    """What is to be done on the network. A flow has it done by ``yield from``, which returns its outcome."""

    __slots__ = ()

    def __iter__(self) -> Flow[T]:
        outcome: T = yield self
        return outcome


@dataclass(frozen=True, slots=True)
class Exchange(Command[Answer]):
    """The command to send a request and return its :class:`Answer`. Raises Unreachable."""

    request: Request[Any]
    seconds: float


@dataclass(frozen=True, slots=True)
class Sleep(Command[None]):
    """The command to do nothing for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Compute(Command[T]):
    """The command to call a function that takes long, and return what it returns. Raises what the function raises."""

    function: Callable[[], T]


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that is read bit by bit."""

    status: int  # of success
    handle: Any  # what the driver needs to close it
    parts: Any  # an iterator of the driver over what is read


@dataclass(frozen=True, slots=True)
class Open(Command[Stream | Answer]):
    """The command to send a request and return its answer as a :class:`Stream`; a refusal is read whole at once.

    Raises Unreachable.
    """

    request: Request[Any]
    reading: Reading
    seconds: float  # of silence after which the connection counts as lost


@dataclass(frozen=True, slots=True)
class Next(Command[Any]):
    """The command to return what comes next in a stream; None at its end. Raises Unreachable."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class Close(Command[None]):
    """The command to close a stream."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class Give(Generic[T]):
    """Hands a value to whoever iterates. It is what the flow of an iteration yields beside its commands."""

    value: T


Flow = Generator[Command[Any], Any, T]
"""An operation that returns one value."""

Iteration = Generator[Command[Any] | Give[T], Any, None]
"""An operation that gives any number of values."""
