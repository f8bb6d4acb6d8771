"""List tenants and set their shares and limits: ``python -m operations.tenants set acme --weight 3``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from jobs.store.database import Database
from jobs.tenancy.tenants import Tenant, list_tenants, set_tenant
from operations.command import Arguments, run_on_store
from operations.table import print_json, print_table
from settings.errors.endings import Ending

COLUMNS = ("TENANT", "WEIGHT", "MAX WAITING TOKENS", "REQUESTS/S", "REQUESTS/MIN")
LIMITS = ("max_waiting_tokens", "requests_per_second", "requests_per_minute")


def _run(database: Database, given: argparse.Namespace) -> int:
    if given.action == "list":
        listed = list_tenants(database)
    else:
        changes = {name: value for name, value in vars(given).items() if name in ("weight", *LIMITS)}
        listed = [set_tenant(database, given.name, **changes)]
    if given.json:
        print_json([asdict(tenant) for tenant in listed])
    else:
        print_table(COLUMNS, map(_row, listed))
    return Ending.DONE


def _row(tenant: Tenant) -> list[str]:
    limits = (tenant.max_waiting_tokens, tenant.requests_per_second, tenant.requests_per_minute)
    return [tenant.name, f"{tenant.weight:g}", *("none" if limit is None else str(limit) for limit in limits)]


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(prog="scoreline tenants")
    actions = parser.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list")
    # What is not given is left out of the namespace, and stays as it is for the tenant.
    change = actions.add_parser("set", argument_default=argparse.SUPPRESS)
    change.add_argument("name")
    change.add_argument("--weight", type=float)
    for limit in LIMITS:
        change.add_argument(f"--{limit.replace('_', '-')}", type=_limit)
    for action in (listing, change):
        action.add_argument("--json", action="store_true", default=False)
    return parser


def _limit(text: str) -> int | None:
    if text != "none" and not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"a limit is a whole number, or none, not {text!r}")
    return None if text == "none" else int(text)


if __name__ == "__main__":
    arguments = _parser().parse_args()
    sys.exit(run_on_store(lambda database: _run(database, arguments)))
