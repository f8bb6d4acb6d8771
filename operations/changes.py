"""List recorded changes of keys and tenants, the newest first: ``python -m operations.changes list --tenant acme``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from jobs.store.database import Database
from jobs.tenancy.changes import Change, list_changes
from operations.command import Arguments, run_on_store
from operations.table import format_time, print_json, print_table
from settings.errors.endings import Ending

COLUMNS = ("TIME", "BY", "CHANGE", "TENANT", "DETAIL")


def _run(database: Database, given: argparse.Namespace) -> int:
    found = list_changes(database, tenant=given.tenant, limit=given.limit)
    if given.json:
        print_json([asdict(change) for change in found])
    else:
        print_table(COLUMNS, map(_row, found))
    return Ending.DONE


def _row(change: Change) -> list[str]:
    detail = ", ".join(f"{name}={json.dumps(value)}" for name, value in change.detail.items())
    return [format_time(change.at), change.by, str(change.action), change.tenant, detail]


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(prog="scoreline tenants changes")
    parser.add_argument("action", choices=["list"])
    parser.add_argument("--tenant")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    arguments = _parser().parse_args()
    sys.exit(run_on_store(lambda database: _run(database, arguments)))
