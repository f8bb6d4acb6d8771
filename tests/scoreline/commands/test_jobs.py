"""The commands that look after jobs."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scoreline import Client, ItemScores, Job, JobEnded, ScorelineError, TimedOut, Unreachable
from scoreline.command import app
from scoreline.commands.jobs import _ChangesAsJson, _write_document
from scoreline.exit_codes import CommandError
from tests.scoreline.running import REAL, ROOT, Up, scoreline


def said(shared_up: Up, *arguments: str) -> str:
    """Run a command in this process and return its output. Raises what the command does."""
    outcome = CliRunner().invoke(app, [*arguments, "--url", shared_up.url])
    if outcome.exception is not None:
        raise outcome.exception
    return outcome.stdout


@pytest.fixture
def job(client: Client) -> Job:
    """A job that has succeeded."""
    return client.wait(client.submit("a", ["b", "c"], labels=["x", "y"], metadata={"run": "7"}))


@pytest.fixture
def waiting(shared_up: Up, client: Client) -> Iterator[Job]:
    """A job that waits, because the worker is frozen."""
    with shared_up.worker_frozen():
        yield client.submit("a", ["b", "c"], labels=["x", "y"])


def test_waiting_ends_with_the_job(shared_up: Up, client: Client) -> None:
    submitted = client.submit("a", ["b"], labels=["x"])
    assert said(shared_up, "wait", submitted.id) == f"{submitted.id} succeeded: 1 items\n"
    assert json.loads(said(shared_up, "wait", submitted.id, "--json"))["status"] == "succeeded"


def test_waiting_ends_with_the_time_or_with_the_cancelled_job(shared_up: Up, waiting: Job) -> None:
    with pytest.raises(TimedOut):
        said(shared_up, "wait", waiting.id, "--timeout", "0.1")
    assert said(shared_up, "jobs", "cancel", waiting.id) == f"{waiting.id} cancelled\n"
    with pytest.raises(JobEnded):
        said(shared_up, "wait", waiting.id)
    with pytest.raises(CommandError, match="is cancelled: --partial") as refused:
        said(shared_up, "results", waiting.id)
    assert refused.value.exit_code == 6
    assert said(shared_up, "results", waiting.id, "--partial") == ""


def test_a_job_that_has_not_ended_has_no_results_yet(shared_up: Up, waiting: Job) -> None:
    with pytest.raises(CommandError, match="is queued: --partial"):
        said(shared_up, "results", waiting.id)


def test_the_exit_code_says_how_waiting_has_ended(shared_up: Up, waiting: Job, client: Client) -> None:
    assert scoreline("wait", waiting.id, "--timeout", "0.1", "--url", shared_up.url).returncode == 124
    client.cancel(waiting.id)
    assert scoreline("wait", waiting.id, "--url", shared_up.url).returncode == 6


def test_results_are_written_in_every_format(shared_up: Up, job: Job, tmp_path: Path) -> None:
    assert job.result is not None
    expected = [[*row, mass] for row, mass in zip(job.result.scores, job.result.label_mass or [], strict=True)]
    lines = [json.loads(line) for line in said(shared_up, "results", job.id).splitlines()]
    assert [[line["score_0"], line["score_1"], line["label_mass"]] for line in lines] == expected
    for ending, delimiter in (("csv", ","), ("tsv", "\t")):
        said(shared_up, "results", job.id, "-o", str(tmp_path / f"out.{ending}"), "--label", "x", "--label", "y")
        rows = list(csv.DictReader(io.StringIO((tmp_path / f"out.{ending}").read_text()), delimiter=delimiter))
        assert [[float(row[name]) for name in ("x", "y", "label_mass")] for row in rows] == expected
    document = json.loads(said(shared_up, "results", job.id, "--format", "json"))
    assert [[*item["scores"], item["label_mass"]] for item in document["data"]] == expected
    assert json.loads(said(shared_up, "results", job.id, "--json")) == document
    with pytest.raises(CommandError, match="--json is --format json"):
        said(shared_up, "results", job.id, "--json", "--format", "csv")


@pytest.mark.parametrize("name", ["out.csv", "out.json", "out.jsonl"])
def test_results_that_can_not_be_written_are_one_line_and_leave_nothing(
    shared_up: Up, job: Job, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    for output in (tmp_path / "missing" / name, tmp_path / name):
        with pytest.raises(CommandError, match="can't be written: ") as refused:
            said(shared_up, "results", job.id, "-o", str(output))
        assert refused.value.exit_code == (1 if output.is_dir() else 2)
        assert "--restart" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_document_has_its_name_only_once_it_is_complete(job: Job, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("before")

    def breaking() -> Iterator[ItemScores]:
        yield ItemScores(0, [0.5], *(None,) * 7)
        raise Unreachable("unreachable", "it broke off")

    with pytest.raises(Unreachable):
        _write_document(breaking(), str(target))
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    assert target.read_text() == "before"


def test_the_answers_of_a_decision_are_shown_with_its_job(shared_up: Up, client: Client) -> None:
    job = client.wait(client.submit_decision("a", {"great": {"type": "noul", "instructions": "Is it great?"}}))
    with pytest.raises(CommandError, match=rf"`scoreline (jobs show {job.id} --json)` has its answers") as refused:
        said(shared_up, "results", job.id)
    shown = re.search(r"scoreline (.*)`", str(refused.value))
    assert shown is not None
    assert "great" in json.loads(said(shared_up, *shown[1].split()))["result"]["answers"]


def test_results_are_written_as_parquet(shared_up: Up, job: Job, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    said(shared_up, "results", job.id, "-o", str(tmp_path / "out.parquet"))
    columns: dict[str, Any] = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    assert job.result is not None
    assert columns["index"] == [0, 1]
    assert [[a, b] for a, b in zip(columns["score_0"], columns["score_1"], strict=True)] == job.result.scores


def test_results_have_what_the_job_was_asked_for(shared_up: Up, client: Client) -> None:
    submitted = client.submit("a", ["b"], template="yes-no", return_logprobs=True, return_logits=True)
    client.wait(submitted)
    (line,) = said(shared_up, "results", submitted.id, "--label", "yes", "--label", "no").splitlines()
    names = ["yes", "no", "logprob yes", "logprob no", "logit yes", "logit no", "label_mass", "relevance"]
    assert list(json.loads(line)) == ["index", *names]
    with pytest.raises(CommandError, match="there are 1 names, and the job has 2 labels"):
        said(shared_up, "results", submitted.id, "--label", "yes")


def test_results_of_items_with_labels_of_their_own_are_json(shared_up: Up, client: Client) -> None:
    submitted = client.submit([70], [[71], [72]], label_token_ids=[[5], [6, 7]])
    client.wait(submitted)
    with pytest.raises(CommandError, match="--format json"):
        said(shared_up, "results", submitted.id)
    document = json.loads(said(shared_up, "results", submitted.id, "--format", "json"))
    assert [len(item["scores"]) for item in document["data"]] == [1, 2]


def test_results_of_a_job_of_likelihoods_have_columns_of_their_own(shared_up: Up, client: Client) -> None:
    found = client.wait(client.submit_likelihood("a", [" b", ""], return_tokens=True))
    assert found.likelihoods is not None
    names = ("logprob", "num_tokens", "is_greedy")
    expected = [{"index": n, **{name: getattr(found.likelihoods, name)[n] for name in names}} for n in range(2)]
    assert [json.loads(line) for line in said(shared_up, "results", found.id).splitlines()] == expected
    document = json.loads(said(shared_up, "results", found.id, "--format", "json"))
    assert [item["tokens"] for item in document["data"]] == found.likelihoods.tokens
    with pytest.raises(CommandError, match="no labels"):
        said(shared_up, "results", found.id, "--label", "yes")


def test_jobs_are_listed_and_shown(shared_up: Up, job: Job) -> None:
    heading, newest = said(shared_up, "jobs", "list", "-n", "1").splitlines()
    assert heading.split() == ["job", "status", "scored", "priority", "created"]
    assert newest.split()[:6] == [job.id, "succeeded", "2", "of", "2", "normal"]
    assert json.loads(said(shared_up, "jobs", "list", "-n", "1", "--json"))[0]["id"] == job.id
    shown = dict(line.split(maxsplit=1) for line in said(shared_up, "jobs", "show", job.id).splitlines())
    assert (shown["status"].strip(), shown["metadata"].strip()) == ("succeeded", "run=7")
    assert json.loads(said(shared_up, "jobs", "show", job.id, "--json"))["id"] == job.id
    assert job.id in said(shared_up, "jobs", "watch", job.id)
    with pytest.raises(ScorelineError, match="no such job"):
        said(shared_up, "jobs", "show", "job_none")


def test_all_jobs_are_cancelled_at_once(shared_up: Up, client: Client, job: Job, waiting: Job) -> None:
    others = [client.submit("a", ["b"], labels=["x"], metadata={"run": "mine", "n": "1"}).id for _ in range(3)]
    with pytest.raises(CommandError, match="either ids of jobs, or --run NAME, or --all"):
        said(shared_up, "jobs", "cancel", job.id, "--all")
    assert sorted(said(shared_up, "jobs", "cancel", "--run", "mine").split()[::2]) == sorted(others)
    assert said(shared_up, "jobs", "cancel", "--run", "mine") == ""
    assert json.loads(said(shared_up, "jobs", "cancel", "--all", "--json"))[0]["id"] == waiting.id
    assert (client.get(waiting).status, client.get(job).status) == ("cancelled", "succeeded")


def test_changes_of_a_watched_job_are_lines_of_json(shared_up: Up, client: Client, waiting: Job) -> None:
    command = subprocess.Popen(
        [sys.executable, *REAL, "jobs", "watch", waiting.id, "--json", "--url", shared_up.url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with command:
        assert command.stdout is not None
        assert json.loads(command.stdout.readline())["status"] == "queued"
        client.cancel(waiting.id)
        assert [json.loads(line)["status"] for line in command.stdout] == ["cancelled"]
    assert command.returncode == 6


def test_changes_of_all_jobs_are_lines_of_json(
    shared_up: Up, client: Client, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    def told() -> list[str]:
        return [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]

    changes = _ChangesAsJson()
    changes.tell(job)
    assert told() == [job.id]
    with shared_up.worker_frozen():
        another = client.submit("a", ["b"], labels=["x"])
    changes.tell(job, another)
    changes.tell(job, another)
    assert told() == [another.id]
    client.wait(another)
    changes.tell(job, client.get(another))
    assert told() == [another.id]


def test_models_are_shown_with_their_templates(shared_up: Up) -> None:
    lines = said(shared_up, "models").splitlines()
    assert lines[0] == "tiny  512 tokens, live workers: 1"
    assert "yes-no (default)  “ yes”, “ no”" in "\n".join(lines)
    assert json.loads(said(shared_up, "models", "--json"))[0]["id"] == "tiny"


def test_a_load_is_measured(shared_up: Up) -> None:
    arguments = ("bench", "--query-tokens", "20", "--items", "5", "--item-tokens", "3", "--seconds", "0.3")
    figures = json.loads(said(shared_up, *arguments, "--clients", "2", "--queries", "1", "--json"))
    assert figures["calls"] >= 2
    assert figures["errors"] == {}
    assert figures["seconds"]["p50"] <= figures["seconds"]["p99"] <= figures["seconds"]["max"]
    with pytest.raises(CommandError, match=r"510 \+ 3 tokens are more than the 512"):
        said(shared_up, *arguments[:2], "510", *arguments[3:])
