"""Health check of a container with a scoring worker: ``python -m operations.worker_health``.

The exit status is 0 if a worker of this host is live, as the API counts workers; otherwise it is 1, and one line on
stderr says why.
"""

from __future__ import annotations

import socket
import sys

from jobs.queue.worker_registry import live_workers
from jobs.store.database import Database
from operations.command import fail, run_on_store
from settings.errors.endings import Ending
from workers.engine_loop.heartbeat import host_of


def _check(database: Database) -> int:
    host = socket.gethostname()
    workers = live_workers(database, database.settings.worker_fresh_seconds)
    if any(host_of(worker.id) == host for worker in workers):
        return Ending.DONE
    return fail(f"no live worker of {host} is registered")


def main() -> int:
    """Return the exit code, 0 or 1: container runtimes know no other.

    The schema is not checked, because that takes longer than the question itself.
    """
    return Ending.DONE if run_on_store(_check, check_schema=False) == Ending.DONE else Ending.FAILED


if __name__ == "__main__":
    sys.exit(main())
