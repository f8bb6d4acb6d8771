"""Log lines as the terminal shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scoreline.terminal.log_lines import LogLine

SCORED = (
    '{"groups": 1, "items": 2, "event": "scored", "level": "info", "logger": "worker", '
    '"timestamp": "2026-11-20T22:34:01.849289Z"}'
)


def line(event: str, level: str, logger: str, extra: str = "") -> LogLine:
    return LogLine.parse(
        f'{{"event": "{event}", "level": "{level}", "logger": "{logger}", "timestamp": "2026-11-20T22:34:01Z"{extra}}}'
    )


def test_a_line_is_shown_with_time_role_event_and_details() -> None:
    shown = LogLine.parse(SCORED).render("worker").plain
    assert shown[2] == shown[5] == ":"
    assert shown[8:] == " worker  scored  groups=1  items=2"


def test_a_line_that_is_not_json_is_shown_unchanged_and_counts_as_a_problem() -> None:
    for raw in ("Traceback (most recent call last):", "42", "[]", '{"event": "half"}', "{"):
        parsed = LogLine.parse(raw)
        assert parsed.is_problem
        assert parsed.render("api").plain.endswith(raw)


def test_logs_of_libraries_are_shown_only_from_level_warning_on() -> None:
    assert line("x", "info", "worker").is_worth_showing
    assert line("x", "info", "bell.redis_bell").is_worth_showing
    assert not line("x", "info", "alembic.runtime.migration").is_worth_showing
    assert line("x", "warning", "alembic.runtime.migration").is_worth_showing
    assert not line("x", "info", "workersomething").is_worth_showing


def test_markup_in_a_log_line_is_shown_as_text() -> None:
    assert line("[red]not red[/red]", "info", "api").render("api").plain.endswith("[red]not red[/red]")


def test_a_traceback_is_shown_and_its_last_line_is_the_reason() -> None:
    failed = line("it failed", "error", "worker", ', "exception": "Traceback\\n  here\\nValueError: no"')
    assert failed.render("worker").plain.endswith("Traceback\n  here\nValueError: no")
    assert failed.plain == "it failed: ValueError: no"


def test_steps_in_a_log_line_are_read_as_progress() -> None:
    assert line("compiling", "info", "worker", ', "step": 3, "steps": 14').progress == (3, 14)
    assert line("scored", "info", "worker", ', "step": 3').progress is None


@pytest.mark.parametrize("place", ["event", "detail", "nested detail", "name of a detail", "exception", "plain text"])
def test_text_of_a_client_can_neither_forge_a_line_nor_control_the_terminal(place: str) -> None:
    hostile = "/v1\r\n12:00:00 api     ready\x1b]52;c;aGk=\x07\x9b2J\u202e"
    fields: dict[str, Any] = {"event": "request", "level": "warning", "logger": "api", "timestamp": "2026-11-20T22:34Z"}
    match place:
        case "event" | "exception":
            fields[place] = hostile
        case "detail":
            fields["path"] = hostile
        case "nested detail":
            fields["path"] = [hostile]
        case "name of a detail":
            fields[hostile] = 1
    parsed = LogLine.parse(f"no JSON {hostile}" if place == "plain text" else json.dumps(fields))
    shown = parsed.render("api").plain
    lines = 3 if place == "exception" else 1  # a traceback has lines of its own
    assert len(shown.split("\n")) == lines
    assert shown.replace("\n", "").isprintable()
    assert parsed.plain.replace("\n", "").isprintable()
