"""Is a worker of this host live? ``python -m operations.worker_health`` looks, as the health check of a container."""

from __future__ import annotations

import socket
import sys

from jobs.queue.worker_registry import live_workers
from jobs.store.database import Database
from settings.api import ApiSettings
from settings.jobs import StoreSettings
from workers.engine_loop.heartbeat import host_of


def live_here(store: StoreSettings, fresh_seconds: float) -> bool:
    """Whether a worker that this host registered was seen within the last ``fresh_seconds``."""
    database = Database.open(store)
    try:
        return any(host_of(worker.id) == socket.gethostname() for worker in live_workers(database, fresh_seconds))
    finally:
        database.close()


def main() -> int:
    """Return the exit status: 0 where a worker is live as the API sees it, else 1, after one line that says why."""
    try:
        if live_here(StoreSettings(), ApiSettings().worker_fresh_seconds):
            return 0
        reason = f"no live worker of {socket.gethostname()} is registered"
    except Exception as error:  # whatever keeps it from looking, the answer is no
        reason = f"can't look: {str(error).partition(chr(10))[0]}"
    print(reason, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
