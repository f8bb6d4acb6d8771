"""A run asks questions about each row, and writes the answers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from scoreline import Client, InvalidRequest
from scoreline.exit_codes import CommandError
from scoreline.runs.decisions import StateColumns
from scoreline.runs.plan import Empty, Plan, Remedy
from tests.scoreline.client.unreliable import Got, Reply, answering, passed_on, refused
from tests.scoreline.running import Up, scoreline
from tests.scoreline.runs.files import execute, plan_of, read_csv, read_lines, write_csv, write_lines

QUESTIONS: dict[str, Any] = {
    "town": {"type": "choice", "instructions": "Which one?", "criteria": {"Paris": "France", "London": None}},
    "bad": {"type": "score", "instructions": "How bad?", "criteria": ["good", "bad", "negative"]},
    "great": {"type": "noul", "instructions": "Is it great?"},
}
NEW = ["town", "town_confidence", "bad", "bad_confidence", "great"]
ROWS = [{"id": str(n), "text": f"This movie number {n} was great!", "place": "London"} for n in range(9)]


def asking(source: Path, target: Path, *columns: str, **given: Any) -> Plan:
    place = StateColumns(columns, is_object=len(columns) > 1)
    options: dict[str, Any] = {"columns": place, "labels": (), "questions": QUESTIONS} | given
    return plan_of(source, target, rows=4, **options)


def expected(client: Client, state: Any) -> list[Any]:
    found = client.decide(state, QUESTIONS).answers
    town, bad = found["town"], found["bad"]
    return [town.value, town.confidence, bad.value, bad.confidence, found["great"].value]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_rows_get_a_column_for_each_answer_and_its_confidence(
    shared_up: Up, client: Client, tmp_path: Path, ending: str
) -> None:
    pq = pytest.importorskip("pyarrow.parquet") if ending == "parquet" else None
    source, target = write_csv(tmp_path / "in.csv", ROWS), tmp_path / f"out.{ending}"
    assert execute(asking(source, target, "text"), shared_up.url).written.rows == len(ROWS)
    rows = pq.read_table(target).to_pylist() if pq else read_csv(target) if ending == "csv" else read_lines(target)
    assert list(rows[0]) == [*ROWS[0], *NEW]
    for row, asked in zip(rows, ROWS, strict=True):
        answers = [row[name] if name == "town" else float(row[name]) for name in NEW]
        assert answers == expected(client, asked["text"])


def test_choices_of_rows_are_asked_in_several_orders(shared_up: Up, client: Client, tmp_path: Path) -> None:
    source, questions = write_csv(tmp_path / "in.csv", ROWS), tmp_path / "questions.json"
    questions.write_text(json.dumps(QUESTIONS))
    asked = ["--questions", str(questions), "--state-column", "text", "--url", shared_up.url]
    run = scoreline("run", str(source), "-o", str(tmp_path / "out.csv"), *asked, "--permute", "balanced")
    assert run.returncode == 0, run.stderr
    found = [client.decide(row["text"], QUESTIONS, permute=2)["town"] for row in ROWS]
    assert [row["town"] for row in read_csv(tmp_path / "out.csv")] == found


def test_several_columns_are_a_state_of_json(shared_up: Up, client: Client, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": 1, "text": {"a": [1]}}, {"id": 2, "text": None}, {"id": None, "text": " "}]
    source, target = write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    finished = execute(asking(source, target, "id", "text", empty=Empty.SKIP), shared_up.url)
    found = [[row[name] for name in NEW] for row in read_lines(target)]
    assert found == [*(expected(client, row) for row in rows[:2]), [None] * len(NEW)]
    assert (finished.written.rows, finished.written.empty) == (3, 1)


def test_a_state_that_no_request_can_have_is_an_error_of_its_row(shared_up: Up, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": 1.5, "text": "a"}, {"id": math.nan, "text": "a"}, {"id": 1, "text": "\ud800"}]
    source, target = write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    with pytest.raises(CommandError, match=r"line [23]: state\.(id|text) .*; with --on-error skip") as refused:
        execute(asking(source, target, "id", "text"), shared_up.url)
    assert refused.value.exit_code == 4
    execute(asking(source, target, "id", "text", on_error=Remedy.SKIP), shared_up.url)
    assert [row["town"] is None for row in read_lines(target)] == [False, True, True]


def test_rows_with_the_same_state_are_one_job_and_a_row_that_is_too_long_is_left_empty(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", [*ROWS[:1] * 3, {"text": "long " * 20_000}])
    with pytest.raises(CommandError, match=r"line 4.*--on-too-long skip"):
        execute(asking(source, tmp_path / "refused.jsonl", "text"), shared_up.url)
    before = {job.id for job in client.jobs()}
    plan = asking(source, target := tmp_path / "out.jsonl", "text", on_too_long=Remedy.SKIP)
    assert execute(plan, shared_up.url).written.too_long == 1
    assert [row["town"] for row in read_lines(target)] == [*[expected(client, ROWS[0]["text"])[0]] * 3, None]
    made = [job for job in client.jobs() if job.id not in before]
    assert [(job.kind, job.priority, job.total_items) for job in made] == [("decision", "bulk", 3)]


def test_a_run_goes_on_with_the_jobs_that_were_sent_and_refuses_other_questions(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    source, target = write_csv(tmp_path / "in.csv", ROWS), tmp_path / "out.csv"
    before = {job.id for job in client.jobs()}
    sent = 0

    def failing(got: Got) -> Reply:
        nonlocal sent
        sent += got.method == "POST"
        return refused(400, "invalid_question") if sent > 3 else passed_on(shared_up.url, got)

    with answering(failing) as server, pytest.raises(InvalidRequest, match="invalid_question"):
        execute(asking(source, target, "text", concurrency=1), server.url)
    with pytest.raises(CommandError, match="another set of questions"):
        execute(asking(source, target, "text", questions={"great": QUESTIONS["great"]}), shared_up.url)
    with pytest.raises(CommandError, match="another state column"):
        execute(asking(source, target, "place"), shared_up.url)
    assert len({job.id for job in client.jobs()} - before) == 3
    execute(asking(source, target, "text"), shared_up.url)
    assert [row["town"] for row in read_csv(target)] == [expected(client, row["text"])[0] for row in ROWS]
    assert len({job.id for job in client.jobs()} - before) == len(ROWS)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--state-column", "text", "--label", "a", "--softmax"], "--label, --softmax"),
        (["--state-column", "text", "--item-column", "text"], "--item-column"),
        (["--state-column", "text", "--temperature", "0"], "--temperature"),
        (["--state-column", "text", "--query-template", "{query}"], "--query-template"),
        (["--state-column", "text", "--state-columns", "a,b"], "either --state-column"),
        (["--state-column", "text", "--permute", "25"], "--permute must be"),
        (["--state-columns", "text,,id"], "--state-columns must be different names"),
        ([], "either --state-column"),
    ],
)
def test_options_that_make_no_sense_together_are_named(tmp_path: Path, options: list[str], problem: str) -> None:
    source, questions = write_csv(tmp_path / "in.csv", ROWS), tmp_path / "questions.json"
    questions.write_text(json.dumps(QUESTIONS))
    common = ["run", str(source), "-o", str(tmp_path / "out.csv"), "--questions", str(questions)]
    run = scoreline(*common, *options)
    assert (run.returncode, problem in run.stderr) == (2, True), run.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "can't be read"),
        ("{", "is not JSON"),
        ("[]", "JSON object"),
        ('{"a": {"type": "b"}}', "the type of 'a'"),
        ('{"a": {"type": "noul"}, "a": {"type": "noul"}}', "has the name 'a' twice"),
        ('{"a": {"type": "choice", "criteria": {"b": null, "b": "c"}}}', "has the name 'b' twice"),
    ],
)
def test_a_wrong_file_of_questions_is_named(tmp_path: Path, text: str | None, problem: str) -> None:
    source, questions = write_csv(tmp_path / "in.csv", ROWS), tmp_path / "questions.json"
    if text is not None:
        questions.write_text(text)
    common = ["run", str(source), "-o", str(tmp_path / "out.csv"), "--state-column", "text"]
    run = scoreline(*common, "--questions", str(questions))
    assert (run.returncode, problem in run.stderr) == (2, True), run.stderr
    missing = scoreline(*common)
    assert (missing.returncode, "--questions, which is missing" in missing.stderr) == (2, True)


def test_a_dry_run_says_what_would_be_asked(shared_up: Up, tmp_path: Path) -> None:
    source, questions = write_csv(tmp_path / "in.csv", ROWS), tmp_path / "questions.json"
    questions.write_text(json.dumps(QUESTIONS))
    asked = ["--questions", str(questions), "--state-columns", "text,place", "--dry-run", "--url", shared_up.url]
    run = scoreline("run", str(source), "-o", str(tmp_path / "out.csv"), *asked)
    assert run.returncode == 0, run.stderr
    assert f"New columns: {', '.join(NEW)}" in run.stdout
    assert "First row: state {'text': 'This movie number 0 was great!', 'place': 'London'}" in run.stdout
