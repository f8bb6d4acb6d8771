"""What the terminal shows while the service starts."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console

from scoreline.terminal.log_lines import LogLine
from scoreline.terminal.progress_display import ProgressDisplay


def line(event: str, level: str = "info", logger: str = "scoring", **details: Any) -> LogLine:
    fields = {"event": event, "level": level, "logger": logger, "timestamp": "2026-11-20T22:34:01Z"}
    return LogLine.parse(json.dumps(fields | details))


def shown_for(*lines: tuple[str, LogLine], terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=160)
    display = ProgressDisplay(console)
    display.begin("Starting")
    for role, logged in lines:
        display.on_log_line(role, logged)
        if display._progress is not None:
            display._progress.refresh()
    display.end()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


DOWNLOADING = [
    ("worker", line("downloading", step=done, steps=total, unit="bytes"))
    for done, total in ((300_000_000, 1_200_000_000), (900_000_000, 1_500_000_000))
]


def test_a_download_is_shown_as_a_bar_with_its_size() -> None:
    shown = shown_for(*DOWNLOADING, terminal=True)
    assert "Starting: downloading 300.0 MB of 1.2 GB" in shown
    assert "Starting: downloading 900.0 MB of 1.5 GB" in shown
    assert "━" in shown


def test_without_a_terminal_a_download_is_one_line() -> None:
    compiling = ("worker", line("compiling", logger="worker", step=1, steps=14))
    assert shown_for(*DOWNLOADING, compiling, terminal=False) == (
        "Starting ...\ndownloading ...\ncompiling (14 steps) ...\n"
    )


def test_a_warning_that_api_and_worker_log_about_the_model_is_shown_once() -> None:
    warning = line("using the cached copy of the model", "warning", why="no network")
    shown = shown_for(("api", warning), ("worker", warning), terminal=False)
    assert shown.count("using the cached copy of the model  why=no network") == 1
