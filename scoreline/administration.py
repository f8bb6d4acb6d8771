"""``scoreline keys`` and ``scoreline tenants``: on the database of ``SCORELINE_DATABASE_URL``, beside the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from scoreline.server_process import become

keys_app = typer.Typer(help="Make, list and revoke API keys, in the database of SCORELINE_DATABASE_URL.")
tenants_app = typer.Typer(help="List tenants, and set their shares and limits, in the same database.")

LimitOption = Annotated[str | None, typer.Option(help="A whole number, or none.")]


def _administer(*words: str, **options: str | None) -> None:
    named: Mapping[str, str] = {name: value for name, value in options.items() if value is not None}
    given = [word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", value)]
    # Behind the two dashes, so that no value is taken for an option.
    become("operations.keys", {}, [*words[:2], *given, *(["--", *words[2:]] if words[2:] else [])])


@keys_app.command("create")
def create_command(
    name: Annotated[str, typer.Option(help="What it is for; shown in lists.")],
    tenant: Annotated[str, typer.Option(help="Whose it is; made if there is none of this name.")] = "default",
    scopes: Annotated[str, typer.Option(help="What it may do, separated by commas.")] = "score,read,webhooks",
    expires_in: Annotated[str | None, typer.Option(help="Such as 90d, 12h, 30m. Default: never.")] = None,
) -> None:
    """Make a key and print it. It is shown this once: the database has no more than a hash of it."""
    _administer("keys", "create", name=name, tenant=tenant, scopes=scopes, expires_in=expires_in)


@keys_app.command("list")
def list_command(
    tenant: Annotated[str | None, typer.Option(help="The keys of one tenant alone.")] = None,
) -> None:
    """List keys, without their secrets."""
    _administer("keys", "list", tenant=tenant)


@keys_app.command("revoke")
def revoke_command(key_id: Annotated[str, typer.Argument(help="The id of the key, as listed.")]) -> None:
    """Revoke a key for good. It stops working within SCORELINE_KEY_CACHE_SECONDS."""
    _administer("keys", "revoke", key_id)


@tenants_app.command("list")
def list_tenants_command() -> None:
    """List tenants with their shares and limits."""
    _administer("tenants", "list")


@tenants_app.command("set")
def set_command(
    name: Annotated[str, typer.Argument(help="The tenant; made if there is none of this name.")],
    weight: Annotated[float | None, typer.Option(help="Its share beside the others: 3 gets three times of 1.")] = None,
    max_waiting_tokens: LimitOption = None,
    requests_per_second: LimitOption = None,
    requests_per_minute: LimitOption = None,
) -> None:
    """Set what is named of a tenant; the rest stays as it is."""
    _administer(
        "tenants",
        "set",
        name,
        weight=None if weight is None else str(weight),
        max_waiting_tokens=max_waiting_tokens,
        requests_per_second=requests_per_second,
        requests_per_minute=requests_per_minute,
    )
