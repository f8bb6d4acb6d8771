"""Keys and tenants, by whoever may reach the database: ``python -m operations.keys keys create --tenant acme``.

What is to be read by another program, the new key or a table, goes to stdout, and everything else to stderr.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from sqlalchemy.exc import SQLAlchemyError

from jobs.store.database import Database, StorageUnavailable
from jobs.tenancy.keys import KeyRecord, Scope, create_key, list_keys, revoke_key
from jobs.tenancy.tenants import DEFAULT_TENANT, Tenant, list_tenants, set_tenant
from settings.jobs import StoreSettings

DONE, FAILED = 0, 1
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhd])")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say. Returns the exit status: 1, after one line on stderr, where it can't be done."""
    given = _parser().parse_args(arguments)
    try:
        database = Database.open(StoreSettings())
    except (ValueError, SQLAlchemyError) as error:
        return _failed(error)
    try:
        database.check()
        return _do(database, given)
    except (ValueError, StorageUnavailable, SQLAlchemyError) as error:
        return _failed(error)
    finally:
        database.close()


def _do(database: Database, given: argparse.Namespace) -> int:
    match given.subject, given.action:
        case "keys", "create":
            key, record = create_key(database, given.tenant, given.name, given.scopes, given.expires_in)
            print(f"key {record.id} of tenant {record.tenant}; it is shown this once:", file=sys.stderr)
            print(key)
        case "keys", "list":
            _print_table(KEY_COLUMNS, map(_key_row, list_keys(database, given.tenant)))
        case "keys", "revoke":
            if not revoke_key(database, given.id):
                return _failed(f"there is no key {given.id!r}; `scoreline keys list` shows their ids")
            print(f"key {given.id} is revoked", file=sys.stderr)
        case "tenants", "list":
            _print_table(TENANT_COLUMNS, map(_tenant_row, list_tenants(database)))
        case "tenants", "set":
            changes = {name: getattr(given, name) for name in _LIMITS if getattr(given, name) is not _UNSET}
            _print_table(TENANT_COLUMNS, [_tenant_row(set_tenant(database, given.name, **changes))])
    return DONE


KEY_COLUMNS = ("ID", "TENANT", "NAME", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "REVOKED")
TENANT_COLUMNS = ("TENANT", "WEIGHT", "MAX WAITING TOKENS", "REQUESTS/S", "REQUESTS/MIN")


def _key_row(key: KeyRecord) -> list[str]:
    times = (key.created_at, key.expires_at, key.last_used_at, key.revoked_at)
    return [key.id, key.tenant, key.name, ",".join(sorted(key.scopes)), *map(_time, times)]


def _tenant_row(tenant: Tenant) -> list[str]:
    limits = (tenant.max_waiting_tokens, tenant.requests_per_second, tenant.requests_per_minute)
    return [tenant.name, f"{tenant.weight:g}", *("none" if limit is None else str(limit) for limit in limits)]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "after 9999"  # a list must be shown whatever one row of it has


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [columns, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
    for line in lines:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _failed(reason: object) -> int:
    print(str(reason).partition("\n")[0], file=sys.stderr)
    return FAILED


_UNSET = object()
_LIMITS = ("weight", "max_waiting_tokens", "requests_per_second", "requests_per_minute")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scoreline")
    subjects = parser.add_subparsers(dest="subject", required=True)
    keys = subjects.add_parser("keys").add_subparsers(dest="action", required=True)
    create = keys.add_parser("create")
    create.add_argument("--tenant", default=DEFAULT_TENANT)
    create.add_argument("--name", required=True)
    create.add_argument("--scopes", type=_scopes, default=frozenset(Scope))
    create.add_argument("--expires-in", type=_duration)
    keys.add_parser("list").add_argument("--tenant")
    keys.add_parser("revoke").add_argument("id")
    tenants = subjects.add_parser("tenants").add_subparsers(dest="action", required=True)
    tenants.add_parser("list")
    change = tenants.add_parser("set")
    change.add_argument("name")
    change.add_argument("--weight", type=float, default=_UNSET)
    for limit in _LIMITS[1:]:
        change.add_argument(f"--{limit.replace('_', '-')}", type=_limit, default=_UNSET)
    return parser


def _scopes(text: str) -> frozenset[Scope]:
    try:
        return frozenset(Scope(name) for name in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"scopes are some of {','.join(Scope)}, not {text!r}") from None


def _duration(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a time is a whole number and one of s, m, h, d, such as 90d, not {text!r}")
    return float(int(found[1]) * _SECONDS[found[2]])


def _limit(text: str) -> int | None:
    return None if text == "none" else int(text)


if __name__ == "__main__":
    sys.exit(main())
