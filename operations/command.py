"""What all commands for operators share: they open the store, use it, and end with an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing

from jobs.store.database import Database, StorageUnavailable, StoreError
from settings.jobs import StoreSettings

DONE, FAILED = 0, 1


def run_on_store(
    action: Callable[[Database], int], *, failed: int = FAILED, prefix: str = "", check_schema: bool = True
) -> int:
    """Return the exit status of ``action``. If it fails, print ``prefix`` and the error, and return ``failed``."""
    try:
        with closing(Database.open(StoreSettings())) as database:
            if check_schema:
                database.check()
            return action(database)
    except (ValueError, OSError, StorageUnavailable, StoreError) as error:
        return fail(f"{prefix}{error}", failed)


def fail(reason: str, status: int = FAILED) -> int:
    """Print the first line of the reason to stderr. Returns the exit status."""
    print(reason.partition("\n")[0], file=sys.stderr)
    return status
