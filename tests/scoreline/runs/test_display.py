"""How far a run has got is shown as a bar on a terminal, and else as a line from time to time."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from scoreline.runs.display import LINE_SECONDS, Progressed, RunDisplay, duration


def shown(progressed: Progressed, *, terminal: bool, moments: list[float]) -> str:
    """Return what is printed where the progress is shown at some moments, in seconds."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=160)
    now = 0.0
    with RunDisplay(console, lambda: now) as display:
        for now in moments:  # noqa: B007 (the clock reads it)
            display.show(progressed)
            if display._bar is not None:
                display._bar.refresh()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


HALF = Progressed(rows_before=100, rows=500, rows_read=600, share_read=0.6, prompt_tokens=1_000, shared_tokens=930)


def test_the_rate_is_that_of_this_process_and_the_rest_is_estimated_from_what_is_read() -> None:
    assert HALF.text(10.0) == "500 of about 1,000 rows, 40 rows/s, 93 % of tokens shared, 0:12 left"


@pytest.mark.parametrize(
    ("progressed", "text"),
    [
        (Progressed(), "0 rows"),
        (Progressed(rows=30, rows_read=40), "30 rows, 3.0 rows/s"),
        (Progressed(rows=30, rows_read=40, share_read=1.0), "30 of 40 rows, 3.0 rows/s, 0:03 left"),
        (Progressed(rows_read=5, waits="waiting for room in the quota"), "0 rows, waiting for room in the quota"),
    ],
)
def test_what_is_not_known_is_left_out(progressed: Progressed, text: str) -> None:
    assert progressed.text(10.0) == text


def test_without_a_terminal_there_is_a_line_from_time_to_time() -> None:
    moments = [1.0, LINE_SECONDS + 1, LINE_SECONDS + 2, 2 * LINE_SECONDS + 1]
    assert len(shown(HALF, terminal=False, moments=moments).splitlines()) == 2


def test_a_terminal_has_a_bar() -> None:
    text = shown(HALF, terminal=True, moments=[10.0])
    assert "500 of about 1,000 rows, 40 rows/s, 93 % of tokens shared, 0:12 left" in text
    assert "━" in text


def test_times_are_short() -> None:
    assert [duration(seconds) for seconds in (0.4, 7, 67, 3_723)] == ["0:00", "0:07", "1:07", "1:02:03"]
