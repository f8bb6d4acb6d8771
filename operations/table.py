"""Print tables to stdout, or the same data as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from settings.errors.endings import Ending


def print_records(
    columns: Sequence[str], records: Sequence[Any], row: Callable[[Any], Sequence[str]], *, as_json: bool
) -> int:
    """Print dataclasses: as JSON, or each as a row of cells below the names of the columns. Returns the exit code."""
    if as_json:
        print_json([asdict(record) for record in records])
        return Ending.DONE
    lines = [columns, *map(row, records)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
    for line in lines:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
    return Ending.DONE


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
