"""``scoreline models``: what a service serves."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scoreline.client import DEFAULT_URL, Client
from scoreline.commands.options import USING, JsonOption, UrlOption
from scoreline.terminal.tables import column_name

app = typer.Typer()


@app.command("models", rich_help_panel=USING)
def models_command(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show the served models, their workers, and the templates that requests may name."""
    with Client(url) as client:
        models = client.models()
    if as_json:
        print(json.dumps([model.raw for model in models]))
        return
    console = Console()
    for model in models:
        workers = "no live worker" if model.live_workers == 0 else f"live workers: {model.live_workers}"
        console.print(Text.assemble((model.id, "bold"), f"  {model.max_model_len:,} tokens, {workers}"), soft_wrap=True)
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
