"""``scoreline models``: what a service serves, and the catalogue of what it is to serve, in its database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scoreline.client import DEFAULT_URL, Client
from scoreline.commands.administration import DataOption, run_on_database
from scoreline.commands.options import JsonOption, UrlOption
from scoreline.terminal.tables import column_name

app = typer.Typer(
    invoke_without_command=True,
    help="Show the served models, their workers, and the templates that requests may name; or change, in a database, "
    "which models there are.",
)

MODULE = "operations.models"
NameArgument = Annotated[str, typer.Argument(help="What requests call the model.")]
ModelOption = Annotated[str | None, typer.Option(help="The folder of a checkpoint, or the id of a model on the hub.")]
RevisionOption = Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the hub.")]
TemplateOption = Annotated[str | None, typer.Option(help="By which it ranks documents: a name, or a file.")]
ContextOption = Annotated[int | None, typer.Option(help="Longest sequence in tokens.  [default: the checkpoint's]")]
FolderOption = Annotated[Path | None, typer.Option(help="Folder with LoRA adapters, a folder each.")]
AliasesOption = Annotated[str | None, typer.Option(help="Further names that requests may give, separated by commas.")]
DefaultOption = Annotated[
    bool | None, typer.Option("--default/--no-default", help="Whether requests mean it that name no model.")
]


@app.callback()
def models_command(context: typer.Context, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show the served models, unless a command about the catalogue follows."""
    if context.invoked_subcommand is not None:
        return
    with Client(url) as client:
        models = client.models()
    if as_json:
        print(json.dumps([model.raw for model in models]))
        return
    console = Console()
    for model in models:
        aliases = f", also called {', '.join(model.aliases)}" if model.aliases else ""
        workers = "no live worker" if model.live_workers == 0 else f"live workers: {model.live_workers}"
        console.print(
            Text.assemble((model.id, "bold"), f"  {model.max_model_len:,} tokens, {workers}{aliases}"), soft_wrap=True
        )
        if model.decides:
            console.print("answers decisions alone")
        if model.classes:
            console.print(Text(f"classes: {', '.join(map(column_name, model.classes))}"), soft_wrap=True)
        if not model.templates:
            continue
        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("template", "labels", "relevance"):
            table.add_column(heading)
        for template in model.raw.get("templates", ()):
            name = template["name"] + (" (default)" if template["name"] == model.template else "")
            labels = ", ".join(map(column_name, template["labels"]))
            table.add_row(Text(name), Text(labels), Text(template["relevance"]))
        console.print(table)


@app.command("list")
def list_command(
    every: Annotated[bool, typer.Option("--all", help="Retired versions, too.")] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the models of the catalogue."""
    run_on_database(MODULE, data, "list", as_json=as_json, flags=["--all"] if every else [])


@app.command("add", help="Add a model: APIs and workers serve it within seconds, without a restart.")
@app.command("set", help="Change what is named of a model. Accepted work keeps the version before.")
def change_command(
    context: typer.Context,
    name: NameArgument,
    model: ModelOption = None,
    revision: RevisionOption = None,
    template: TemplateOption = None,
    context_length: ContextOption = None,
    adapter_folder: FolderOption = None,
    aliases: AliasesOption = None,
    default: DefaultOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a model, or change one: the name of the command is the action."""
    run_on_database(
        MODULE,
        data,
        str(context.info_name),
        name,
        model=model,
        revision=revision,
        template=template,
        context_length=None if context_length is None else str(context_length),
        adapter_folder=None if adapter_folder is None else str(adapter_folder.absolute()),
        aliases=aliases,
        default=None if default is None else "yes" if default else "no",
        as_json=as_json,
    )


@app.command("retire")
def retire_command(name: NameArgument, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Have requests name a model no more. What was accepted for it is still scored."""
    run_on_database(MODULE, data, "retire", name, as_json=as_json)


@app.command("apply")
def apply_command(
    file: Annotated[Path, typer.Argument(help="A TOML file with a table [models.NAME] for each model; -: the input.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have the catalogue be what a file says: models that it does not have are retired."""
    run_on_database(MODULE, data, "apply", str(file), as_json=as_json)
