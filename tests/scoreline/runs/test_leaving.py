"""A run that ends early leaves no work behind of which its user does not know."""

from __future__ import annotations

import io
import re
import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from scoreline import Client, InvalidRequest
from scoreline.exit_codes import CommandError
from tests.scoreline.client.unreliable import BROKEN, Got, Reply, answering, passed_on, refused
from tests.scoreline.running import Up, scoreline
from tests.scoreline.runs.files import ROWS, execute, plan_of, write_csv
from tests.scoreline.runs.test_resuming import RunningCommand
from tests.services import wait_until


@pytest.fixture(autouse=True)
def nothing_open(client: Client) -> None:
    """Cancel what other tests have left."""
    client.cancel_all()


def runs_of_open_jobs(client: Client) -> list[str | None]:
    return [job.metadata.get("run") for status in ("queued", "running") for job in client.jobs(status=status)]


def interrupted(up: Up, client: Client, source: Path, target: Path, *options: str) -> tuple[int, list[str]]:
    """Interrupt a run once its three jobs wait. Return how many jobs are open then, and what the run has said."""
    command = RunningCommand(source, target, up.url, *options)
    wait_until(lambda: len(runs_of_open_jobs(client)) == 3, "its jobs wait")
    code, said = command.stop(signal.SIGINT)
    assert code == 130
    return len(runs_of_open_jobs(client)), said.splitlines()


def test_ctrl_c_says_what_goes_on_and_how_to_stop_it(shared_up: Up, client: Client, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", ROWS[:6])
    with shared_up.worker_frozen():
        _, said = interrupted(shared_up, client, source, tmp_path / "my scores.csv")
        (name,) = set(runs_of_open_jobs(client))
        assert said[0] == f"The run {name} begins."
        found = re.fullmatch(
            r"3 jobs go on without this command: `scoreline (jobs cancel --run .*)` stops them\.", said[1]
        )
        assert found is not None, said
        outcome = scoreline(*shlex.split(found[1]))
        assert len(outcome.stdout.splitlines()) == 3, outcome.stderr
        assert not runs_of_open_jobs(client)


def test_an_error_says_as_well_what_goes_on(shared_up: Up, client: Client, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", [*ROWS[:3], ROWS[0] | {"item": "too long " * 600}])
    console = Console(file=io.StringIO(), width=200)
    with shared_up.worker_frozen(), pytest.raises(CommandError, match="line 5"):
        execute(plan_of(source, tmp_path / "out.csv", rows=3, concurrency=5), shared_up.url, console)
    assert "3 jobs go on without this command" in console.file.getvalue()  # type: ignore[attr-defined]


@contextmanager
def answering_late(url: str, refusal: Reply | None = None) -> Iterator[str]:
    """Have a job accepted of which nobody hears, and only then one refused that is too long. Yield where they are sent.

    refusal: the answer to the latter; None: that of the service.
    """
    is_accepted, has_ended = threading.Event(), threading.Event()

    def answer(got: Got) -> Reply:
        if (got.method, got.path) != ("POST", "/v1/jobs"):
            return passed_on(url, got)
        if b"too long" in got.body:
            is_accepted.wait(30)
            return refusal or passed_on(url, got)
        passed_on(url, got)
        is_accepted.set()
        has_ended.wait(30)
        return BROKEN

    with answering(answer) as server:
        yield server.url
        has_ended.set()


def test_jobs_that_were_being_sent_when_a_run_ended_are_found_again(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    """Also if a run between has ended before it got so far."""
    source = write_csv(tmp_path / "in.csv", [ROWS[0], ROWS[0] | {"item": "too long " * 600}])
    plan = plan_of(source, tmp_path / "out.csv", rows=1)
    before = {job.id for job in client.jobs()}
    with answering_late(shared_up.url) as url, pytest.raises(CommandError, match="line 3"):
        execute(plan, url)
    source.write_text("id,query,item\nno row\n")
    with pytest.raises(CommandError, match="line 2: it has 1 values"):
        execute(plan, shared_up.url)
    write_csv(source, ROWS[:2])
    execute(plan, shared_up.url)
    assert len([job for job in client.jobs() if job.id not in before]) == 2


def test_jobs_that_were_being_sent_when_an_option_was_refused_are_cancelled(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    source = write_csv(tmp_path / "in.csv", [ROWS[0], ROWS[0] | {"item": "too long " * 600}])
    late = answering_late(shared_up.url, refused(400, "invalid_label"))
    with shared_up.worker_frozen():
        with late as url, pytest.raises(InvalidRequest):
            execute(plan_of(source, tmp_path / "out.csv", rows=1), url)
        assert not runs_of_open_jobs(client)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_restart_cancels_what_the_run_before_has_left(shared_up: Up, client: Client, tmp_path: Path) -> None:
    source, target = write_csv(tmp_path / "in.csv", ROWS[:6]), tmp_path / "out.csv"
    with shared_up.worker_frozen():
        interrupted(shared_up, client, source, target)
        (before,) = set(runs_of_open_jobs(client))
        command = RunningCommand(source, target, shared_up.url, "--restart", "--softmax")
        wait_until(
            lambda: before not in (names := runs_of_open_jobs(client)) and len(names) == 3, "new jobs wait alone"
        )
    code, said = command.end()
    assert code == 0, said
    assert said.splitlines()[0] == f"3 jobs of the run {before} are cancelled."


def test_a_run_that_can_not_go_on_later_cancels_its_jobs(shared_up: Up, client: Client, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", ROWS[:6])
    with shared_up.worker_frozen():
        left, said = interrupted(shared_up, client, source, Path("-"), "--output-format", "csv")
    assert (left, said[1:]) == (0, ["scoreline: interrupted"])
