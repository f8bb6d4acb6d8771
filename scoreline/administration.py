"""``scoreline keys`` and ``scoreline tenants``: commands on the database of ``SCORELINE_DATABASE_URL``."""

from __future__ import annotations

from typing import Annotated

import typer

from scoreline.server_process import exec_server_module

keys_app = typer.Typer(help="Make, list and revoke API keys, in the database of SCORELINE_DATABASE_URL.")
tenants_app = typer.Typer(help="List tenants, and set their shares and limits, in the same database.")

LimitOption = Annotated[str | None, typer.Option(help="A whole number, or none.")]


def _run(module: str, action: str, argument: str | None = None, **options: str | None) -> None:
    named = {name: value for name, value in options.items() if value is not None}
    given = [word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", value)]
    # The argument follows two dashes, so that it is never taken for an option.
    exec_server_module(module, {}, [action, *given, *([] if argument is None else ["--", argument])])


@keys_app.command("create")
def create_command(
    name: Annotated[str, typer.Option(help="What it is for; shown in lists.")],
    tenant: Annotated[str, typer.Option(help="Whose it is; made if there is none of this name.")] = "default",
    scopes: Annotated[str, typer.Option(help="What it may do, separated by commas.")] = "score,read,webhooks",
    expires_in: Annotated[str | None, typer.Option(help="Such as 90d, 12h, 30m. Default: never.")] = None,
) -> None:
    """Make a key and print it. It is shown this once: the database has no more than a hash of it."""
    _run("operations.keys", "create", name=name, tenant=tenant, scopes=scopes, expires_in=expires_in)


@keys_app.command("list")
def list_command(tenant: Annotated[str | None, typer.Option(help="The keys of one tenant alone.")] = None) -> None:
    """List keys, without their secrets."""
    _run("operations.keys", "list", tenant=tenant)


@keys_app.command("revoke")
def revoke_command(key_id: Annotated[str, typer.Argument(help="The id of the key, as listed.")]) -> None:
    """Revoke a key for good. It stops working within SCORELINE_KEY_CACHE_SECONDS."""
    _run("operations.keys", "revoke", key_id)


@tenants_app.command("list")
def list_tenants_command() -> None:
    """List tenants with their shares and limits."""
    _run("operations.tenants", "list")


@tenants_app.command("set")
def set_command(
    name: Annotated[str, typer.Argument(help="The tenant; made if there is none of this name.")],
    weight: Annotated[float | None, typer.Option(help="Its share beside the others: 3 gets three times of 1.")] = None,
    max_waiting_tokens: LimitOption = None,
    requests_per_second: LimitOption = None,
    requests_per_minute: LimitOption = None,
) -> None:
    """Set what is named of a tenant; the rest stays as it is."""
    _run(
        "operations.tenants",
        "set",
        name,
        weight=None if weight is None else str(weight),
        max_waiting_tokens=max_waiting_tokens,
        requests_per_second=requests_per_second,
        requests_per_minute=requests_per_minute,
    )
