"""``scoreline keys`` and ``scoreline tenants``: commands on a database, which ``--data`` or a variable names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from scoreline.commands.options import JsonOption
from scoreline.server_process import exec_on_database

keys_app = typer.Typer(help="Make, list and revoke API keys, in a database.")
tenants_app = typer.Typer(help="Create, change, suspend and remove tenants, in the same database.")

DataOption = Annotated[
    Path | None,
    typer.Option(
        help="The folder of `scoreline up`, to work on its database.  [default: the database of SCORELINE_DATABASE_URL]"
    ),
]
LimitOption = Annotated[str | None, typer.Option(help="A whole number, or none.")]
NameArgument = Annotated[str, typer.Argument(help="The tenant.")]
WeightOption = Annotated[float | None, typer.Option(help="Its share beside the others: 3 gets three times of 1.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it. Without this, only what would go is counted.")]


def run_on_database(
    module: str,
    data: Path | None,
    action: str,
    argument: str | None = None,
    *,
    as_json: bool,
    yes: bool = False,
    flags: Sequence[str] = (),
    **options: str | None,
) -> None:
    """Run an action of a module on a database. Never returns. options: those that are None are left out."""
    named = {name: value for name, value in options.items() if value is not None}
    given = [word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", value)]
    given += [*flags, *(["--json"] if as_json else [])]
    given += ["--yes"] if yes else []
    # The argument follows two dashes, so that it is never taken for an option.
    exec_on_database(module, data, [action, *given, *([] if argument is None else ["--", argument])])


@keys_app.command("create")
def create_command(
    name: Annotated[str, typer.Option(help="What it is for; shown in lists.")],
    tenant: Annotated[str, typer.Option(help="Whose it is; made if there is none of this name.")] = "default",
    scopes: Annotated[str, typer.Option(help="What it may do, separated by commas.")] = "score,read,webhooks",
    expires_in: Annotated[str | None, typer.Option(help="Such as 90d, 12h, 30m. Default: never.")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it. It is shown this once: the database has no more than a hash of it."""
    run_on_database(
        "operations.keys",
        data,
        "create",
        name=name,
        tenant=tenant,
        scopes=scopes,
        expires_in=expires_in,
        as_json=as_json,
    )


@keys_app.command("list")
def list_command(
    tenant: Annotated[str | None, typer.Option(help="The keys of one tenant alone.")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List keys, without their secrets."""
    run_on_database("operations.keys", data, "list", tenant=tenant, as_json=as_json)


@keys_app.command("revoke")
def revoke_command(
    key_id: Annotated[str, typer.Argument(help="The id of the key, as listed.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key for good. It stops working within SCORELINE_KEY_CACHE_SECONDS."""
    run_on_database("operations.keys", data, "revoke", key_id, as_json=as_json)


@tenants_app.command("list")
def list_tenants_command(data: DataOption = None, as_json: JsonOption = False) -> None:
    """List tenants with their shares and limits."""
    run_on_database("operations.tenants", data, "list", as_json=as_json)


@tenants_app.command("set", help="Set what is named of a tenant; the rest stays as it is.")
@tenants_app.command("create", help="Make a tenant. `scoreline keys create` makes its keys.")
def change_command(
    context: typer.Context,
    name: NameArgument,
    weight: WeightOption = None,
    max_waiting_tokens: LimitOption = None,
    requests_per_second: LimitOption = None,
    requests_per_minute: LimitOption = None,
    models: Annotated[str | None, typer.Option(help="The models that it may use, separated by commas, or all.")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a tenant, or change one: the name of the command is the action."""
    run_on_database(
        "operations.tenants",
        data,
        str(context.info_name),
        name,
        weight=None if weight is None else str(weight),
        max_waiting_tokens=max_waiting_tokens,
        requests_per_second=requests_per_second,
        requests_per_minute=requests_per_minute,
        models=models,
        as_json=as_json,
    )


@tenants_app.command("suspend")
def suspend_command(name: NameArgument, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Refuse all requests of a tenant, within SCORELINE_KEY_CACHE_SECONDS. Work that was accepted goes on."""
    run_on_database("operations.tenants", data, "suspend", name, as_json=as_json)


@tenants_app.command("resume")
def resume_command(name: NameArgument, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Take the requests of a suspended tenant again."""
    run_on_database("operations.tenants", data, "resume", name, as_json=as_json)


@tenants_app.command("purge")
def purge_command(
    name: NameArgument, yes: YesOption = False, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Remove all jobs, batches and files of a tenant for good. Its keys and limits stay."""
    run_on_database("operations.tenants", data, "purge", name, yes=yes, as_json=as_json)


@tenants_app.command("delete")
def delete_command(
    name: NameArgument, yes: YesOption = False, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Revoke the keys of a tenant, remove all that it has stored, and the tenant itself, for good."""
    run_on_database("operations.tenants", data, "delete", name, yes=yes, as_json=as_json)


@tenants_app.command("changes")
def changes_command(
    tenant: Annotated[str | None, typer.Option(help="The changes of one tenant alone.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 100,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List who has changed keys, tenants and webhook secrets, the newest change first."""
    run_on_database("operations.changes", data, "list", tenant=tenant, limit=str(limit), as_json=as_json)
