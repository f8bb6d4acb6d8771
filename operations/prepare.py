"""What ``scoreline up`` does before it starts its processes: ``python -m operations.prepare``.

It checks the settings of all processes, and brings the store to this version's schema.
"""

from __future__ import annotations

import sys

from jobs.store.database import Database
from jobs.store.migration import migrate
from operations.command import fail, run_on_store
from settings.errors.endings import Ending
from settings.unknown import wrong_settings


def main() -> int:
    """Return the exit code."""
    if wrong := wrong_settings():
        return fail("; ".join(wrong), Ending.MISCONFIGURED)
    return run_on_store(_migrate, check_schema=False)


def _migrate(database: Database) -> int:
    migrate(database)
    return Ending.DONE


if __name__ == "__main__":
    sys.exit(main())
