"""Check all invariants on the whole store: ``python -m operations.check``."""

from __future__ import annotations

import sys

from jobs.invariants import CHECKS, everything, run
from jobs.store.database import Database
from operations.command import DONE, run_on_store

VIOLATED, UNKNOWN = 1, 2
"""Exit statuses: an invariant is violated; the store can't be read."""


def _check(database: Database) -> int:
    """Print a line for each invariant, and examples where it is violated. Returns the exit status."""
    violated = 0
    extent = everything()
    width = max(len(check.name) for check in CHECKS)
    for check in CHECKS:
        violation = run(database, check, extent)
        violated += violation is not None
        outcome = "ok      " if violation is None else "VIOLATED"
        print(f"{outcome}  {check.name:{width}}  {check.says}", flush=True)
        if violation is not None:
            print(f"          {'':{width}}  not so: {', '.join(violation.examples)}", flush=True)
    print(f"{violated} of {len(CHECKS)} rules are broken" if violated else f"all {len(CHECKS)} rules hold")
    return VIOLATED if violated else DONE


if __name__ == "__main__":
    sys.exit(run_on_store(_check, failed=UNKNOWN, prefix="can't look: "))
