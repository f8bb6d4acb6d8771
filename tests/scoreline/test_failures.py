"""What the command says of an error names what may help."""

from __future__ import annotations

import pytest

from scoreline import Client, JobFailed, Overloaded, ScorelineError, Unreachable
from scoreline.failures import WHERE_TO_FIND_A_SERVICE, failure_of
from tests.scoreline.running import scoreline
from tests.services import free_port


def test_where_nothing_answers_the_command_says_how_to_find_a_service() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    run = scoreline("bench", SCORELINE_URL=url)  # It does not try again, as others do for some seconds.
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"scoreline: no answer from {url}: ")
    assert line.endswith(f"; {WHERE_TO_FIND_A_SERVICE}")


@pytest.mark.parametrize("url", ["nonsense", "http://", "http://[::1"])
def test_an_address_that_is_none_is_a_wrong_option(url: str) -> None:
    with pytest.raises(Unreachable) as raised:
        Client(url)
    failure = failure_of(raised.value, hint="go on")
    assert failure.exit_code == 2
    assert str(failure).startswith(f"{url!r} is no address of a service")
    assert "go on" not in str(failure)


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (Unreachable("unreachable", "it broke off"), "it broke off; go on", 3),
        (Overloaded("overloaded", "it is full", 503), "it is full; go on", 3),
        (JobFailed("job_failed", "it failed", 409), "it failed; go on", 6),
        (ScorelineError("empty_query", "it is empty", 400), "it is empty", 4),
    ],
)
def test_a_hint_is_given_where_trying_again_may_help(error: ScorelineError, message: str, code: int) -> None:
    failure = failure_of(error, hint="go on")
    assert (str(failure), failure.exit_code) == (message, code)
