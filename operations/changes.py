"""List recorded changes of keys and tenants, the newest first: ``python -m operations.changes list --tenant acme``."""

from __future__ import annotations

import argparse
import json
import sys

from jobs.store.database import Database
from jobs.tenancy.changes import Change, list_changes
from operations.command import Arguments, run_on_store
from operations.table import format_time, print_records

MOST_CHANGES = 10_000
COLUMNS = ("TIME", "BY", "CHANGE", "TENANT", "DETAIL")


def _run(database: Database, given: argparse.Namespace) -> int:
    found = list_changes(database, tenant=given.tenant, limit=given.limit)
    return print_records(COLUMNS, found, _row, as_json=given.json)


def _row(change: Change) -> list[str]:
    detail = ", ".join(f"{name}={json.dumps(value)}" for name, value in change.detail.items())
    return [format_time(change.at), change.by, str(change.action), change.tenant, detail]


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(prog="scoreline tenants changes")
    parser.add_argument("action", choices=["list"])
    parser.add_argument("--tenant")
    parser.add_argument("--limit", type=_limit, default=100)
    parser.add_argument("--json", action="store_true")
    return parser


def _limit(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_CHANGES:
        raise argparse.ArgumentTypeError(f"a limit is a whole number from 1 to {MOST_CHANGES}, not {text!r}")
    return int(text)


if __name__ == "__main__":
    arguments = _parser().parse_args()
    sys.exit(run_on_store(lambda database: _run(database, arguments)))
