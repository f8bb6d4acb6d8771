"""How a worker's process ends: told to, in good order; or at once, with a status that says why."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn

import structlog

STOPPED = 0
BROKEN = 1
STUCK = 70
"""Exit statuses: stopped on demand; failed in a way a new process may survive; ended because the engine hung."""

log = structlog.stdlib.get_logger("worker")


class Stopping:
    """SIGTERM and SIGINT: the first one asks the worker to stop, the second one ends it on the spot.

    They reach a thread through Python's wake-up descriptor, so nothing is interrupted, and it does not matter how long
    a device call keeps the main thread from looking. To be made in the main thread.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], None] = lambda: end_process(STOPPED, "stopped while starting")
        self._signals, arriving = os.pipe()
        os.set_blocking(arriving, False)
        signal.set_wakeup_fd(arriving)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave_it_to_the_thread)
        threading.Thread(target=self._wait, name="signals", daemon=True).start()

    def calls(self, stop: Callable[[], None]) -> None:
        """From now on, the first signal calls this. Before, it ends the process: there is nothing to put in order."""
        self._stop = stop

    def _wait(self) -> None:
        log.info("stopping", signal=signal.Signals(os.read(self._signals, 1)[0]).name)
        self._stop()
        os.read(self._signals, 1)
        end_process(BROKEN, "told to stop twice")


def _leave_it_to_the_thread(_number: int, _frame: object) -> None:
    pass


def end_process(status: int, reason: str | None = None) -> NoReturn:
    """End without taking the interpreter apart: with an accelerator library that takes longer than stopping did, and a
    hung device call would keep it from ending at all.
    """
    if reason is not None:
        (log.info if status == STOPPED else log.critical)(reason, exit_status=status)
    logging.shutdown()
    os._exit(status)
