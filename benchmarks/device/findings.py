"""What a part of the measurement finds, and parts in processes of their own, which end when the time is over."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import structlog

Value = float | str | bool | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Some figures under a name."""

    part: str  # the heading that it belongs under
    name: str
    values: dict[str, Value]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the measurement: a function of a module, and what it is called with."""

    name: str
    function: Callable[..., Iterator[Finding]]
    arguments: tuple[object, ...] = ()


def findings_of(part: Part, until: float) -> Iterator[Finding]:
    """Run a part in a process of its own, and yield what it finds. At ``until``, in seconds of the clock, it is ended.

    So a part that fails costs no other part. jax and torch never share a process, nor the memory of the device.
    """
    if time.time() >= until:
        yield Finding(part.name, "not run", {"note": "no time was left"})
        return
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, part))
    process.start()
    sender.close()
    try:
        while receiver.poll(max(0.0, until - time.time())):
            yield receiver.recv()
        yield Finding(part.name, "ended", {"note": "the time was over"})
    except EOFError:
        process.join()
        if process.exitcode:
            yield Finding(part.name, "failed", {"note": f"its process ended with {process.exitcode}"})
    finally:
        process.kill()
        process.join()
        receiver.close()


def _send(sender: Connection, part: Part) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with sender:
        for finding in part.function(*part.arguments):
            sender.send(finding)
