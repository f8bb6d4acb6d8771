"""The exit code of the command says what kind of failure it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from scoreline.exit_codes import CommandError, ExitCode, exit_code_of


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("unreachable", 0, 3),
        ("unexpected_response", 404, 3),
        ("overloaded", 503, 3),
        ("quota_exceeded", 429, 3),
        ("internal_error", 500, 3),
        ("idempotency_in_progress", 409, 3),
        ("empty_query", 400, 4),
        ("job_not_found", 404, 4),
        ("request_too_large", 413, 4),
        ("invalid_api_key", 401, 5),
        ("insufficient_scope", 403, 5),
        ("job_failed", 409, 6),
        ("job_cancelled", 409, 6),
        ("timeout", 504, 124),
    ],
)
def test_each_error_of_the_service_has_the_exit_code_of_its_kind(code: str, status: int, expected: int) -> None:
    assert exit_code_of(code, status) == expected


def test_an_error_of_the_command_has_the_code_1_unless_it_names_another() -> None:
    assert CommandError("no").exit_code == 1
    assert CommandError("no", ExitCode.USAGE).exit_code == 2


def test_the_documentation_lists_every_exit_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command.md").read_text()
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert [row for row in rows if row.isdigit()] == [str(int(code)) for code in ExitCode]
