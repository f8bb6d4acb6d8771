"""Bring the store to this version's schema: ``python -m operations.migrate``."""

from __future__ import annotations

import sys

from jobs.store.database import Database
from jobs.store.migration import migrate
from operations.command import DONE, run_on_store


def _migrate(database: Database) -> int:
    migrate(database)
    return DONE


if __name__ == "__main__":
    sys.exit(run_on_store(_migrate, check_schema=False))
