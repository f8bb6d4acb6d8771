"""Show on the terminal what systems are worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from scoreline.terminal.printable import printable

DIGITS = 4


def interval_text(figure: Mapping[str, Any]) -> str:
    """Return a figure with its interval, such as ``0.9100 (0.8900 to 0.9300)``; a dash if it is not known."""
    value, low, high = figure["value"], figure["low"], figure["high"]
    if value is None:
        return "–"
    if low is None or high is None:
        return f"{value:.{DIGITS}f}"
    return f"{value:.{DIGITS}f} ({low:.{DIGITS}f} to {high:.{DIGITS}f})"


def report_tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the tables of a report: the metrics of all systems, and the differences of each pair."""
    table = _table("intervals of 95 %", [system["name"] for system in report["systems"]])
    for name in report["systems"][0]["metrics"]:
        table.add_row(name, *(interval_text(system["metrics"][name]) for system in report["systems"]))
    yield table
    for pair in report["differences"]:
        table = _table(f"{pair['system']} less {pair['base']}", ["difference", "smallest that this file can show"])
        for name, figure in pair["metrics"].items():
            detectable = "–" if figure["detectable"] is None else f"{figure['detectable']:.{DIGITS}f}"
            style = "bold" if figure["is_clear"] else ""
            table.add_row(name, Text(interval_text(figure), style=style), detectable)
        yield table


def _table(corner: str, headings: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(Text(printable(corner)))
    for heading in headings:
        table.add_column(Text(printable(heading)), justify="right")
    return table
