"""How a worker process ends: in good order when a signal asks for it, or at once with an exit status."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn

import structlog

STOPPED = 0  # exit status: stopped on request
BROKEN = 1  # exit status: failed in a way that a new process may survive
STUCK = 70  # exit status: ended itself because the engine hung

log = structlog.stdlib.get_logger("worker")


class StopSignals:
    """Handles SIGTERM and SIGINT: the first one asks the process to stop, the second one ends it immediately.

    A thread reads the signals from Python's wake-up descriptor. So the handler runs even while a long device call keeps
    the main thread busy, and it interrupts nothing. Must be created in the main thread.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], None] = lambda: end_process(STOPPED, "stopped while starting")
        self._signals, arriving = os.pipe()
        os.set_blocking(arriving, False)
        signal.set_wakeup_fd(arriving)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave_to_thread)
        threading.Thread(target=self._wait, name="signals", daemon=True).start()

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Have the first signal call ``stop``. Until this is set, the first signal ends the process."""
        self._stop = stop

    def _wait(self) -> None:
        log.info("stopping", signal=signal.Signals(os.read(self._signals, 1)[0]).name)
        self._stop()
        os.read(self._signals, 1)
        end_process(BROKEN, "told to stop twice")


def _leave_to_thread(_number: int, _frame: object) -> None:
    pass


def end_process(status: int, reason: str | None = None) -> NoReturn:
    """End the process without Python's shutdown.

    With an accelerator library loaded, that shutdown takes seconds; a device call that hangs would block it forever.
    """
    if reason is not None:
        (log.info if status == STOPPED else log.critical)(reason, exit_status=status)
    logging.shutdown()
    os._exit(status)
