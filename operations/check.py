"""Check all invariants on the whole store: ``python -m operations.check``."""

from __future__ import annotations

import sys

from jobs.invariants import CHECKS, everything, run
from jobs.store.database import Database
from operations.command import Arguments, run_on_store
from operations.table import print_json
from settings.errors.endings import Ending

VIOLATED = 1
"""Exit code if an invariant is violated. If the store can't be read, it is another one."""


def _check(database: Database, *, as_json: bool) -> int:
    """Print a line for each invariant, and examples where it is violated. Returns the exit code."""
    violated = 0
    extent = everything()
    width = max(len(check.name) for check in CHECKS)
    found = []
    for check in CHECKS:
        violation = run(database, check, extent)
        violated += violation is not None
        examples = () if violation is None else violation.examples
        found.append({"rule": check.name, "says": check.says, "holds": violation is None, "examples": examples})
        if as_json:
            continue
        outcome = "ok      " if violation is None else "VIOLATED"
        print(f"{outcome}  {check.name:{width}}  {check.says}", flush=True)
        if violation is not None:
            print(f"          {'':{width}}  not so: {', '.join(examples)}", flush=True)
    if as_json:
        print_json(found)
    else:
        print(f"{violated} of {len(CHECKS)} rules are broken" if violated else f"all {len(CHECKS)} rules hold")
    return VIOLATED if violated else Ending.DONE


if __name__ == "__main__":
    parser = Arguments(prog="scoreline check")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sys.exit(run_on_store(lambda database: _check(database, as_json=given.json)))
