"""What a person sees while the service starts."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console

from scoreline.log_lines import LogLine
from scoreline.progress_display import Narrator


def line(event: str, level: str = "info", logger: str = "scoring", **details: Any) -> LogLine:
    fields = {"event": event, "level": level, "logger": logger, "timestamp": "2026-11-20T22:34:01Z"}
    return LogLine.parse(json.dumps(fields | details))


def narrated(*lines: tuple[str, LogLine], terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=160)
    narrator = Narrator(console)
    narrator.begin("Starting")
    for role, said in lines:
        narrator.line(role, said)
        if narrator._progress is not None:
            narrator._progress.refresh()
    narrator.end()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


DOWNLOADING = [
    ("worker", line("downloading", step=done, steps=total, unit="bytes"))
    for done, total in ((300_000_000, 1_200_000_000), (900_000_000, 1_500_000_000))
]


def test_a_download_is_a_bar_with_how_much_there_is() -> None:
    shown = narrated(*DOWNLOADING, terminal=True)
    assert "Starting: downloading 300.0 MB of 1.2 GB" in shown
    assert "Starting: downloading 900.0 MB of 1.5 GB" in shown
    assert "━" in shown


def test_where_there_is_no_terminal_a_download_is_one_line() -> None:
    compiling = ("worker", line("compiling", logger="worker", step=1, steps=14))
    assert narrated(*DOWNLOADING, compiling, terminal=False) == (
        "Starting ...\ndownloading ...\ncompiling (14 steps) ...\n"
    )


def test_a_warning_about_the_model_is_seen_once_and_before_the_service_is_ready() -> None:
    warning = line("using the cached copy of the model", "warning", why="no network")
    shown = narrated(("api", warning), ("worker", warning), terminal=False)
    assert shown.count("using the cached copy of the model  why=no network") == 1
