"""Fail points: a process kills or freezes itself when it comes to a given place in its code."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any, Literal

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, event

from jobs.store.postgresql import WatchedConnection


def place(module: ModuleType, function: Callable[..., object]) -> str:
    """Return the path of a function as ``module`` calls it: its own, or one that it has imported.

    Raises AttributeError if the module has no such function, for example after a rename.
    """
    if getattr(module, function.__name__) is not function:
        raise AttributeError(f"{module.__name__}.{function.__name__} is another function than the one given")
    return f"{module.__name__}.{function.__name__}"


@dataclass(frozen=True, slots=True)
class Point:
    """The ``nth`` time that a process comes to a place in its code, it sends a signal to itself."""

    place: str  # from tests.faults.injection.places
    when: Literal["before", "commit", "after"]
    """Before the call, just before a transaction inside it is committed (or sent, if it is one statement), or after it
    has returned a value."""
    nth: int = 1
    signal: Literal["SIGKILL", "SIGSTOP"] = "SIGKILL"


def to_text(points: Iterable[Point]) -> str:
    """Write points for the environment of a process."""
    return json.dumps([asdict(point) for point in points])


def install(points: str) -> None:
    """Install points in this process. Imports the modules in which they are."""
    for fields in json.loads(points):
        point = Point(**fields)
        module_name, _, name = point.place.rpartition(".")
        module = importlib.import_module(module_name)
        setattr(module, name, _with_point(point, getattr(module, name)))


class _Committing(threading.local):
    """What to call at each commit, because of the functions that this thread is in."""

    def __init__(self) -> None:
        self.reached: list[Callable[[], None]] = []


_committing = _Committing()


@event.listens_for(Engine, "commit")
def _on_commit(_: Connection) -> None:
    for reached in _committing.reached:
        reached()


@event.listens_for(Engine, "before_cursor_execute")
def _on_statement(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    # A statement without a transaction around it is committed when it has been carried out.
    driver: Any = connection.connection.driver_connection
    alone = isinstance(driver, WatchedConnection) and driver.info.transaction_status is TransactionStatus.IDLE
    if alone and driver.autocommit and "INSERT INTO" in statement:
        _on_commit(connection)


def _with_point(point: Point, function: Callable[..., Any]) -> Callable[..., Any]:
    times = itertools.count(1)

    def reached() -> None:
        if next(times) == point.nth:
            # The signal goes to this thread. If it went to the process, the main thread could take it later, while this
            # thread goes on.
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
