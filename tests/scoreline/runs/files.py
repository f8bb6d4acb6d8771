"""Files of queries and items, and runs over them in this process."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from scoreline import AsyncClient, Client
from scoreline.runs.beginning import Finished, run
from scoreline.runs.formats import format_of
from scoreline.runs.plan import Plan
from scoreline.runs.prompts import Columns
from scoreline.runs.windows import WindowSize

LABELS = (" yes", " no")

ROWS = [
    {"id": str(n), "query": f"The capital of {('France', 'Japan', 'Germany')[n * 7 % 3]}", "item": f" is number {n}"}
    for n in range(40)
]
"""Rows whose queries take turns."""


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_csv(path: Path, delimiter: str = ",") -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def plan_of(source: Path, target: Path, *, rows: int = 15, options: dict[str, Any] | None = None, **given: Any) -> Plan:
    """Return a plan. rows: of a window."""
    fields: dict[str, Any] = {"labels": LABELS, "columns": Columns("query", "item")} | given
    return Plan(
        source=str(source),
        source_format=format_of(str(source), None, ""),
        target=str(target),
        target_format=format_of(str(target), None, ""),
        options=options or {},
        window=WindowSize(rows, 10**9),
        **fields,
    )


def execute(plan: Plan, url: str, console: Console | None = None) -> Finished:
    async def go() -> Finished:
        async with AsyncClient(url) as client:
            return await run(plan, client, console or Console(quiet=True))

    return asyncio.run(go())


def expected_scores(client: Client, rows: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Return the scores and the label mass of each row, as the service gives them for the row alone."""
    found = [client.score(row["query"], [row["item"]], labels=list(LABELS)) for row in rows]
    return [[*result.scores[0], result.raw["label_mass"][0]] for result in found]
