"""Create, list, change, suspend and remove tenants: ``python -m operations.tenants set acme --weight 3``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from jobs.catalogue import list_models
from jobs.store.database import Database
from jobs.tenancy.tenants import Tenant, create_tenant, list_tenants, set_tenant, suspend_tenant
from jobs.tenant_removal import Stored, count_stored, delete_tenant, purge_tenant
from operations.command import Arguments, run_on_store
from operations.table import format_time, print_json, print_records
from settings.errors.endings import Ending
from settings.keys import KeySettings
from settings.slice import split_at_commas

COLUMNS = ("TENANT", "WEIGHT", "MAX WAITING TOKENS", "REQUESTS/S", "REQUESTS/MIN", "MODELS", "SUSPENDED")
LIMITS = ("max_waiting_tokens", "requests_per_second", "requests_per_minute")


def _run(database: Database, given: argparse.Namespace) -> int:
    match given.action:
        case "list":
            listed = list_tenants(database)
        case "create" | "set":
            limits = {name: value for name, value in vars(given).items() if name in ("weight", "models", *LIMITS)}
            if limits.get("models"):
                limits["models"] = _by_their_names(database, limits["models"])
            change = create_tenant if given.action == "create" else set_tenant
            listed = [change(database, given.name, **limits)]
        case "suspend" | "resume":
            listed = [suspend_tenant(database, given.name, suspended=given.action == "suspend")]
        case _:
            return _remove(database, given)
    return print_records(COLUMNS, listed, _row, as_json=given.json)


def _by_their_names(database: Database, models: list[str]) -> list[str]:
    """Return models by their names, where aliases are given: an alias may mean another model tomorrow."""
    names = {alias: model.name for model in list_models(database) for alias in model.aliases}
    return list(dict.fromkeys(names.get(model, model) for model in models))


def _remove(database: Database, given: argparse.Namespace) -> int:
    """Purge or delete a tenant, if ``--yes`` was given; otherwise say what that would remove."""
    if not given.yes:
        stored = _describe(count_stored(database, given.name))
        raise ValueError(f"this would remove {stored} of {given.name!r} for good; repeat it with --yes")
    if given.action == "purge":
        removed = purge_tenant(database, given.name)
    else:
        removed = delete_tenant(database, given.name, KeySettings().key_cache_seconds)
    if given.json:
        print_json(asdict(removed))
    else:
        print(f"removed {_describe(removed)} of {given.name!r}", file=sys.stderr)
    return Ending.DONE


def _describe(stored: Stored) -> str:
    return f"{stored.jobs} jobs and calls, {stored.batches} batches and {stored.files} files"


def _row(tenant: Tenant) -> list[str]:
    limits = (tenant.max_waiting_tokens, tenant.requests_per_second, tenant.requests_per_minute)
    shown = ("none" if limit is None else str(limit) for limit in limits)
    models = "all" if tenant.models is None else ", ".join(tenant.models)
    return [tenant.name, f"{tenant.weight:g}", *shown, models, format_time(tenant.suspended_at)]


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(prog="scoreline tenants")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list")
    # What is not given is left out of the namespace, and stays as it is for the tenant.
    for name in ("create", "set"):
        change = actions.add_parser(name, argument_default=argparse.SUPPRESS)
        change.add_argument("--weight", type=float)
        change.add_argument("--models", type=lambda text: None if text == "all" else split_at_commas(text))
        for limit in LIMITS:
            change.add_argument(f"--{limit.replace('_', '-')}", type=_limit)
    for name in ("suspend", "resume"):
        actions.add_parser(name)
    for name in ("purge", "delete"):
        actions.add_parser(name).add_argument("--yes", action="store_true")
    for name, action in actions.choices.items():
        if name != "list":
            action.add_argument("name")
        action.add_argument("--json", action="store_true", default=False)
    return parser


def _limit(text: str) -> int | None:
    if text != "none" and not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"a limit is a whole number, or none, not {text!r}")
    return None if text == "none" else int(text)


if __name__ == "__main__":
    arguments = _parser().parse_args()
    sys.exit(run_on_store(lambda database: _run(database, arguments)))
