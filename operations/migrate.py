"""Bring the store to this version's schema: ``python -m operations.migrate``."""

from __future__ import annotations

import sys

from jobs.store.database import Database
from jobs.store.migration import migrate
from operations.command import run_on_store
from settings.errors.endings import Ending


def bring_up_to_date(database: Database) -> int:
    """Migrate the store, and say from where to where. Returns the exit code."""
    before, after = migrate(database)
    if before == after:
        print(f"the schema is at migration {after} already")
    else:
        print(f"the schema went from {f'migration {before}' if before else 'nothing'} to migration {after}")
    return Ending.DONE


if __name__ == "__main__":
    sys.exit(run_on_store(bring_up_to_date, check_schema=False))
