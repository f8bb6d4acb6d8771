"""Look for what must never be in the store: ``python -m operations.check`` runs every check, on everything."""

from __future__ import annotations

import sys

from sqlalchemy.exc import SQLAlchemyError

from jobs.invariants import CHECKS, everything, run
from jobs.store.database import Database, StorageUnavailable
from settings.jobs import StoreSettings

HOLDS, VIOLATED, UNKNOWN = 0, 1, 2
"""Exit statuses: all rules hold; some do not; the store can't be looked at."""


def main() -> int:
    """Print a line for each rule, with ids where it is broken. Returns the exit status."""
    try:
        database = Database.open(StoreSettings())
    except (ValueError, SQLAlchemyError) as error:
        return _unknown(error)
    try:
        database.check()
        return _look(database)
    except (StorageUnavailable, SQLAlchemyError) as error:
        return _unknown(error)
    finally:
        database.close()


def _look(database: Database) -> int:
    broken = 0
    extent = everything(database)
    width = max(len(check.name) for check in CHECKS)
    for check in CHECKS:
        violation = run(database, check, extent)
        broken += violation is not None
        outcome = "ok      " if violation is None else "VIOLATED"
        print(f"{outcome}  {check.name:{width}}  {check.says}", flush=True)
        if violation is not None:
            print(f"          {'':{width}}  not so: {', '.join(violation.examples)}", flush=True)
    print(f"{broken} of {len(CHECKS)} rules are broken" if broken else f"all {len(CHECKS)} rules hold")
    return VIOLATED if broken else HOLDS


def _unknown(error: Exception) -> int:
    print(f"can't look: {str(error).partition(chr(10))[0]}", file=sys.stderr)
    return UNKNOWN


if __name__ == "__main__":
    sys.exit(main())
