"""Fail points: where in its code a process is to be killed or frozen, named by a function that it comes through."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Engine, event


@dataclass(frozen=True, slots=True)
class Point:
    """The ``nth`` time that a process comes to a place in its code, it sends itself a signal.

    function: where its callers look it up, such as ``workers.engine_loop.loop.claim``; when: as it is called, as a
    transaction inside it is about to be committed, or once it has returned something.
    """

    function: str
    when: Literal["before", "commit", "after"]
    nth: int = 1
    signal: Literal["SIGKILL", "SIGSTOP"] = "SIGKILL"


def to_text(points: Iterable[Point]) -> str:
    """For the environment of a process."""
    return json.dumps([asdict(point) for point in points])


def install(points: str) -> None:
    """Have this process come to these points. Imports the modules that they are in."""
    for fields in json.loads(points):
        point = Point(**fields)
        module_name, _, name = point.function.rpartition(".")
        module = importlib.import_module(module_name)
        setattr(module, name, _with_point(point, getattr(module, name)))


class _Committing(threading.local):
    """What is to happen at the commits of the functions that a thread is in."""

    def __init__(self) -> None:
        self.reached: list[Callable[[], None]] = []


_committing = _Committing()


@event.listens_for(Engine, "commit")
def _on_commit(_: Connection) -> None:
    for reached in _committing.reached:
        reached()


def _with_point(point: Point, function: Callable[..., Any]) -> Callable[..., Any]:
    times = itertools.count(1)

    def reached() -> None:
        if next(times) == point.nth:
            # To this thread: sent to the process, it may be the main thread that takes it, while this one goes on.
            signal.pthread_kill(threading.get_ident(), signal.Signals[point.signal])

    @functools.wraps(function)
    def before(*arguments: Any, **named: Any) -> Any:
        reached()
        return function(*arguments, **named)

    @functools.wraps(function)
    def commit(*arguments: Any, **named: Any) -> Any:
        _committing.reached.append(reached)
        try:
            return function(*arguments, **named)
        finally:
            _committing.reached.remove(reached)

    @functools.wraps(function)
    def after(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        if result is not None:
            reached()
        return result

    return {"before": before, "commit": commit, "after": after}[point.when]
