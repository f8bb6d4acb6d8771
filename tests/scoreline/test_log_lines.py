"""Log lines as the terminal shows them."""

from __future__ import annotations

from scoreline.log_lines import LogLine

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


def test_what_is_no_json_is_shown_as_it_is_and_counts_as_trouble() -> None:
    for raw in ("Traceback (most recent call last):", "42", "[]", '{"event": "half"}', "{"):
        parsed = LogLine.parse(raw)
        assert parsed.is_trouble
        assert parsed.render("api").plain.endswith(raw)


def test_libraries_are_heard_only_when_something_is_wrong() -> None:
    assert line("x", "info", "worker").is_news
    assert line("x", "info", "bell.redis_bell").is_news
    assert not line("x", "info", "alembic.runtime.migration").is_news
    assert line("x", "warning", "alembic.runtime.migration").is_news
    assert not line("x", "info", "workersomething").is_news


def test_markup_in_a_line_is_text() -> None:
    assert line("[red]not red[/red]", "info", "api").render("api").plain.endswith("[red]not red[/red]")


def test_a_traceback_is_shown_and_its_last_line_is_the_reason() -> None:
    failed = line("it failed", "error", "worker", ', "exception": "Traceback\\n  here\\nValueError: no"')
    assert failed.render("worker").plain.endswith("Traceback\n  here\nValueError: no")
    assert failed.plain == "it failed: ValueError: no"


def test_progress_is_recognised() -> None:
    assert line("compiling", "info", "worker", ', "step": 3, "steps": 14').progress == (3, 14)
    assert line("scored", "info", "worker", ', "step": 3').progress is None
