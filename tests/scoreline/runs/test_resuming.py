"""A run that was stopped, whatever by, goes on where it was, and nothing is scored or written twice."""

from __future__ import annotations

import io
import os
import re
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from scoreline import Client, Unreachable
from scoreline.client.results import Provenance
from scoreline.exit_codes import CommandError
from scoreline.runs.journal import Journal
from scoreline.runs.run import check_weights
from tests.scoreline.client.unreliable import BROKEN, Got, Reply, answering, passed_on
from tests.scoreline.running import REAL, ROOT, Up
from tests.scoreline.runs.files import LABELS, ROWS, execute, expected_scores, plan_of, read_csv, write_csv
from tests.services import free_port, wait_until


class RunningCommand:
    """``scoreline run`` in a process of its own."""

    def __init__(self, source: Path, target: Path, url: str, *options: str) -> None:
        labels = [word for label in LABELS for word in ("--label", label)]
        columns = ["--query-column", "query", "--item-column", "item", *labels]
        command = [sys.executable, *REAL, "run", str(source), *columns, "-o", str(target), *options]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"SCORELINE_URL": url}, stderr=subprocess.PIPE, text=True
        )

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        return self.end()


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_run_goes_on_after_ctrl_c_and_after_it_was_killed(shared_up: Up, client: Client, tmp_path: Path) -> None:
    rows = [row | {"item": f"{row['item']} of {part}"} for part in range(6) for row in ROWS]
    source, target = write_csv(tmp_path / "in.csv", rows), tmp_path / "out.csv"
    unfinished = tmp_path / "out.csv.part"
    before = {job.id for job in client.jobs()}
    options = ("--window-rows", "20", "--concurrency", "2")
    for number, share in ((signal.SIGINT, 0.1), (signal.SIGKILL, 0.5)):
        command = RunningCommand(source, target, shared_up.url, *options)
        wait_until(lambda share=share: lines_in(unfinished) > share * len(rows), "some rows are written")  # type: ignore[misc]
        code, said = command.stop(number)
        assert not target.exists()
        if number == signal.SIGINT:
            assert code == 130
            assert said.splitlines()[-1].endswith("the same command goes on where this one has stopped")
            assert "Traceback" not in said
    code, said = RunningCommand(source, target, shared_up.url, *options).end()
    assert code == 0, said
    written = read_csv(target)
    assert [row["item"] for row in written] == [row["item"] for row in rows]
    some = range(0, len(rows), 37)
    numbers = [[float(written[n][name]) for name in ("yes", "no", "label_mass")] for n in some]
    assert numbers == expected_scores(client, [rows[n] for n in some])
    jobs = [job for job in client.jobs() if job.id not in before and job.priority == "bulk"]
    assert sum(job.total_items for job in jobs) == len(rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


@pytest.fixture
def interrupted(shared_up: Up, tmp_path: Path) -> Path:
    """The input of a run that has written some windows and was stopped by a wrong row."""
    rows = [*ROWS[:30], ROWS[30] | {"item": "too long " * 600}, *ROWS[31:]]
    source = write_csv(tmp_path / "in.csv", rows)
    with pytest.raises(CommandError, match="line 32"):
        execute(plan_of(source, tmp_path / "out.csv", concurrency=1), shared_up.url)
    assert lines_in(tmp_path / "out.csv.part") == 31
    return source


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"labels": (" yes",)}, "another list of labels"),
        ({"options": {"apply_softmax": True}}, "another apply softmax"),
        ({"prefix": "p_"}, "another column prefix"),
        ({"rows": 16}, "another window"),
    ],
)
def test_it_does_not_go_on_with_other_options(
    shared_up: Up, interrupted: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(CommandError, match=says) as refused:
        execute(plan_of(interrupted, interrupted.with_name("out.csv"), **changes), shared_up.url)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_what_changes_behind_the_rows_that_are_written_is_welcome(shared_up: Up, interrupted: Path) -> None:
    """Here the row that stopped the run is made shorter, and another one is appended."""
    rows = [*ROWS, ROWS[0] | {"id": "40"}]
    write_csv(interrupted, rows)
    execute(plan_of(interrupted, interrupted.with_name("out.csv")), shared_up.url)
    assert [row["id"] for row in read_csv(interrupted.with_name("out.csv"))] == [row["id"] for row in rows]


def test_a_row_that_is_written_and_was_changed_is_named(shared_up: Up, interrupted: Path) -> None:
    interrupted.write_text(interrupted.read_text().replace("is number 3\n", "is number 4\n"))
    with pytest.raises(CommandError, match="line 5 is not what it was when the run read it") as refused:
        execute(plan_of(interrupted, interrupted.with_name("out.csv")), shared_up.url)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("lines", [1, 16])
def test_it_does_not_go_on_with_an_input_that_ends_before_what_is_written(
    shared_up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    rows = [*ROWS[:39], ROWS[39] | {"item": "too long " * 600}]
    content = write_csv(tmp_path / "in.csv", rows).read_text()

    def execute_on(text: str, **options: Any) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        plan = plan_of(tmp_path / "in.csv", tmp_path / "out.csv", concurrency=1, **options)
        execute(replace(plan, source="-"), shared_up.url)

    with pytest.raises(CommandError, match="line 41"):
        execute_on(content)
    with pytest.raises(CommandError, match=f"standard input: it ends with line {lines if lines > 1 else 0} now"):
        execute_on("".join(content.splitlines(keepends=True)[:lines]))
    assert not (tmp_path / "out.csv").exists()
    execute_on(content, on_too_long="skip")
    assert [row["id"] for row in read_csv(tmp_path / "out.csv")] == [row["id"] for row in rows]


def test_restart_begins_again(shared_up: Up, interrupted: Path) -> None:
    target = interrupted.with_name("out.csv")
    write_csv(interrupted, ROWS)
    execute(plan_of(interrupted, target, labels=(" yes",), restart=True), shared_up.url)
    assert [row["id"] for row in read_csv(target)] == [row["id"] for row in ROWS]
    with pytest.raises(CommandError, match="is there already: --restart replaces it"):
        execute(plan_of(interrupted, target, labels=(" no",)), shared_up.url)
    execute(plan_of(interrupted, target, labels=(" no",), restart=True), shared_up.url)
    assert "no" in read_csv(target)[0]


def test_parquet_that_was_begun_goes_on(shared_up: Up, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows = [*ROWS[:30], ROWS[30] | {"item": "too long " * 600}, *ROWS[31:]]
    source, target = write_csv(tmp_path / "in.csv", rows), tmp_path / "out.parquet"
    with pytest.raises(CommandError, match="line 32"):
        execute(plan_of(source, target, concurrency=1), shared_up.url)
    assert len(list((tmp_path / "out.parquet.parts").iterdir())) == 2
    execute(plan_of(source, target, on_too_long="skip"), shared_up.url)
    execute(plan_of(target, tmp_path / "out.csv", prefix="b_", on_too_long="skip"), shared_up.url)
    assert [row["id"] for row in read_csv(tmp_path / "out.csv")] == [row["id"] for row in ROWS]
    assert not (tmp_path / "out.parquet.parts").exists()


def test_a_run_that_goes_on_waits_for_the_service_and_says_so(
    shared_up: Up, interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scoreline.client.exchange.sending.FIRST_CONTACT_SECONDS", 0.0)
    monkeypatch.setattr("scoreline.client.exchange.sending.LONGEST_PAUSE_SECONDS", 0.1)
    shown = io.StringIO()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    target = interrupted.with_name("out.csv")
    with pytest.raises(Unreachable):
        execute(plan_of(interrupted, interrupted.with_name("new.csv")), url)
    plan = plan_of(interrupted, target, on_too_long="skip")
    console = Console(file=shown, force_terminal=True, width=200)

    def answer(got: Got) -> Reply:
        """Submit nothing before the run has said that it waits."""
        is_said = got.method != "POST" or "waiting for the service" in shown.getvalue()
        return passed_on(shared_up.url, got) if is_said else BROKEN

    with ThreadPoolExecutor(1) as threads:
        going = threads.submit(execute, plan, url, console)
        wait_until(lambda: "Waiting" in shown.getvalue() or going.done(), "it waits")
        with answering(answer, port):
            going.result()
    lines = shown.getvalue().splitlines()
    assert lines[0] == f"Waiting for the service at {url}."
    # The error may have stopped the run after it wrote the second window and before it noted that.
    assert re.fullmatch(r"The run out.csv-\w{8} goes on: (15|30) rows are written already\.", lines[1])
    assert [row["id"] for row in read_csv(target)] == [row["id"] for row in ROWS]
    assert not interrupted.with_name("new.csv.journal").exists()


def test_two_runs_do_not_write_the_same_file(shared_up: Up, interrupted: Path) -> None:
    target = interrupted.with_name("out.csv")
    plan = plan_of(interrupted, target)
    journal = Journal(target.with_name("out.csv.journal"), plan.fingerprint())
    with pytest.raises(CommandError, match="is in use"):
        execute(plan, shared_up.url)
    journal.close()


def test_restart_leaves_a_run_alone_that_goes_on(shared_up: Up, interrupted: Path) -> None:
    target = interrupted.with_name("out.csv")
    plan = plan_of(interrupted, target, on_too_long="skip")
    content = target.with_name("out.csv.part").read_bytes()
    journal = Journal(target.with_name("out.csv.journal"), plan.fingerprint())
    with pytest.raises(CommandError, match="is in use"):
        execute(replace(plan, restart=True), shared_up.url)
    assert target.with_name("out.csv.part").read_bytes() == content
    journal.close()
    journal = Journal(target.with_name("out.csv.journal"), plan.fingerprint())
    assert (journal.is_resumed, journal.written.rows) == (True, 30)
    journal.close()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("is_a_database", [False, True])
def test_what_is_no_journal_is_left_alone(tmp_path: Path, restart: bool, is_a_database: bool) -> None:
    path = tmp_path / "out.csv.journal"
    if is_a_database:
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE recipes (name TEXT)")
    else:
        path.write_bytes(b"no journal " * 1_000)
    content = path.read_bytes()
    plan = plan_of(write_csv(tmp_path / "in.csv", ROWS), tmp_path / "out.csv", restart=restart)
    with pytest.raises(CommandError, match="can't be used as the journal of this run") as refused:
        execute(plan, "http://127.0.0.1:9")
    assert refused.value.exit_code == 2
    assert path.read_bytes() == content
    assert sorted(found.name for found in tmp_path.iterdir()) == ["in.csv", "out.csv.journal"]


def test_a_journal_of_an_older_version_says_what_to_do(shared_up: Up, tmp_path: Path) -> None:
    plan = plan_of(write_csv(tmp_path / "in.csv", ROWS), tmp_path / "out.csv")
    (tmp_path / "out.csv.part").write_text("query,item,yes\n")
    with closing(sqlite3.connect(tmp_path / "out.csv.journal")) as database, database:
        database.execute("CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        database.execute("INSERT INTO run VALUES ('id', '\"0123\"')")  # One that was killed had no more.
    with pytest.raises(CommandError, match=r"another version of Scoreline .* begin again with --restart"):
        execute(plan, shared_up.url)
    execute(replace(plan, restart=True), shared_up.url)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


def test_it_does_not_go_on_with_another_model(shared_up: Up, interrupted: Path) -> None:
    target = interrupted.with_name("out.csv")
    plan = plan_of(interrupted, target, on_too_long="skip")
    journal = Journal(target.with_name("out.csv.journal"), plan.fingerprint())
    journal.note("served", {"models": ["another"], "template": None, "labels": [" yes", " no"]})
    journal.close()
    with pytest.raises(CommandError, match="serves tiny now, and this run began with another"):
        execute(plan, shared_up.url)


def test_it_goes_on_when_other_models_come_and_go(shared_up: Up, interrupted: Path) -> None:
    """Earlier versions have noted all models that were served."""
    plan = plan_of(interrupted, interrupted.with_name("out.csv"), on_too_long="skip")
    journal = Journal(plan.journal, plan.fingerprint())
    journal.note("served", {"models": ["tiny", "tiny:spam"], "template": None, "labels": [" yes", " no"]})
    journal.close()
    assert execute(plan, shared_up.url).written.rows == len(ROWS)


def test_it_does_not_go_on_with_other_weights(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", {})
    names: dict[str, Any] = dict.fromkeys(Provenance.__slots__)

    def job(weights: str | None) -> Any:
        return SimpleNamespace(
            provenance=[None if weights is None else Provenance(**names | {"weights_fingerprint": weights})]
        )

    for weights in ("ab", None, "ab"):
        check_weights(job(weights), journal)
    journal.close()
    journal = Journal(tmp_path / "journal", {})
    with pytest.raises(CommandError, match="weights of the model are others"):
        check_weights(job("cd"), journal)
    journal.close()


@pytest.mark.parametrize("remedy", ["fail", "skip"])
def test_a_job_that_is_cancelled_is_an_error_of_its_rows(
    shared_up: Up, client: Client, tmp_path: Path, remedy: str
) -> None:
    source, target = write_csv(tmp_path / "in.csv", ROWS[:6]), tmp_path / "out.csv"
    with shared_up.worker_frozen():
        before = {job.id for job in client.jobs()}
        command = RunningCommand(source, target, shared_up.url, "--on-error", remedy)
        wait_until(lambda: len({job.id for job in client.jobs()} - before) == 3, "its jobs wait")
        cancelled = next(job for job in client.jobs() if job.id not in before)
        client.cancel(cancelled.id)
    code, said = command.end()
    if remedy == "skip":
        assert code == 0, said
        assert "2 rows could not be scored: their cells are empty." in said
        assert [row["yes"] for row in read_csv(target)].count("") == 2
        return
    assert code == 6
    assert "was cancelled; the same command goes on" in said.splitlines()[-1]
    code, said = RunningCommand(source, target, shared_up.url).end()
    assert code == 0, said
    assert all(row["yes"] for row in read_csv(target))
