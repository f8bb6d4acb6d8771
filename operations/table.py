"""Print tables to stdout, or the same data as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of cells below the names of their columns."""
    lines = [columns, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
    for line in lines:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def print_json(value: Any) -> None:
    """Print a value as one line of JSON. Sets are printed as sorted lists."""
    print(json.dumps(value, default=sorted))


def format_time(seconds: float | None) -> str:
    """Return a time, in Unix seconds, as text in UTC; a dash if there is none."""
    if seconds is None:
        return "-"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "after 9999"  # one such row must not keep the list from being shown
