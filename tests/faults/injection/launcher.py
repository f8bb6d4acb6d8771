"""Runs a module as ``python -m`` does, with faults: ``python -m tests.faults.injection.launcher MODULE ARGUMENT...``.

The environment names the faults:
``FAULT_POINTS``: see :mod:`tests.faults.injection.points`.
``FAULT_CLOCK``: seconds by which the process's own clock is ahead.
``FAULT_IDLE_SECONDS``: seconds after which PostgreSQL ends the transaction of a silent client.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from typing import Any
from unittest.mock import patch


def set_clock(ahead: float) -> None:
    """Set the clock of this process ahead by so many seconds."""
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + ahead
    time.time_ns = lambda: nanoseconds() + round(ahead * 1e9)


def set_idle_limit(seconds: str) -> None:
    """Connect with a shorter limit than the product's minute, which is long for a test."""
    from sqlalchemy import create_engine

    def with_limit(url: Any, *, connect_args: dict[str, Any], **options: Any) -> Any:
        limit = f"{connect_args['options']} -c idle_in_transaction_session_timeout={seconds}s"
        return create_engine(url, connect_args=connect_args | {"options": limit}, **options)

    patch("jobs.store.postgresql.create_engine", with_limit).start()


def main() -> None:
    if ahead := os.environ.get("FAULT_CLOCK"):
        set_clock(float(ahead))
    from tests.faults.injection.points import install  # imported after the clock is set, because its imports read it

    if seconds := os.environ.get("FAULT_IDLE_SECONDS"):
        set_idle_limit(seconds)
    install(os.environ.get("FAULT_POINTS", "[]"))
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
