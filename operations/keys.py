"""Create, list and revoke API keys: ``python -m operations.keys create --name laptop --tenant acme``.

A new key and tables, which other programs may read, are printed to stdout; everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import asdict

from jobs.store.database import Database
from jobs.tenancy.keys import KeyRecord, Scope, create_key, list_keys, revoke_key
from jobs.tenancy.tenants import DEFAULT_TENANT
from operations.command import Arguments, run_on_store
from operations.table import format_time, print_json, print_records
from settings.errors.endings import Ending

COLUMNS = ("ID", "TENANT", "NAME", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "REVOKED")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhd])")


def _run(database: Database, given: argparse.Namespace) -> int:
    match given.action:
        case "create":
            key, record = create_key(database, given.tenant, given.name, given.scopes, given.expires_in)
            if given.json:
                print_json(asdict(record) | {"key": key})
                return Ending.DONE
            print(f"key {record.id} of tenant {record.tenant}; it is shown this once:", file=sys.stderr)
            print(key)
        case "list":
            return print_records(COLUMNS, list_keys(database, given.tenant), _row, as_json=given.json)
        case "revoke":
            if not revoke_key(database, given.id):
                raise ValueError(f"there is no key {given.id!r}; `scoreline keys list` shows their ids")
            if given.json:
                print_json({"id": given.id, "revoked": True})
            else:
                print(f"key {given.id} is revoked", file=sys.stderr)
    return Ending.DONE


def _row(key: KeyRecord) -> list[str]:
    times = (key.created_at, key.expires_at, key.last_used_at, key.revoked_at)
    return [key.id, key.tenant, key.name, ",".join(sorted(key.scopes)), *map(format_time, times)]


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(prog="scoreline keys")
    actions = parser.add_subparsers(dest="action", required=True)
    create = actions.add_parser("create")
    create.add_argument("--tenant", default=DEFAULT_TENANT)
    create.add_argument("--name", required=True)
    create.add_argument("--scopes", type=_scopes, default=frozenset(Scope))
    create.add_argument("--expires-in", type=_duration)
    listing = actions.add_parser("list")
    listing.add_argument("--tenant")
    revoke = actions.add_parser("revoke")
    revoke.add_argument("id")
    for action in (create, listing, revoke):
        action.add_argument("--json", action="store_true")
    return parser


def _scopes(text: str) -> frozenset[Scope]:
    try:
        return frozenset(Scope(name) for name in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"scopes are some of {','.join(Scope)}, not {text!r}") from None


def _duration(text: str) -> float:
    """Return the seconds of a duration such as ``90d``."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a time is a whole number and one of s, m, h, d, such as 90d, not {text!r}")
    return float(int(found[1]) * _SECONDS[found[2]])


if __name__ == "__main__":
    arguments = _parser().parse_args()
    sys.exit(run_on_store(lambda database: _run(database, arguments)))
