"""The command ``scoreline run``: what it reads and writes, what it says, and how it is used wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scoreline.running import Up, scoreline
from tests.scoreline.runs.files import LABELS, ROWS, read_lines, write_csv, write_lines


def test_the_command_reads_standard_input_and_writes_standard_output(shared_up: Up) -> None:
    given = "".join(json.dumps(row) + "\n" for row in ROWS[:3])
    labels = [word for label in LABELS for word in ("--label", label)]
    outcome = scoreline(
        "run", "-", "--input-format", "jsonl", "--query-column", "query", "--item-column", "item", *labels, "-o", "-",
        given=given, SCORELINE_URL=shared_up.url,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    assert [json.loads(line)["id"] for line in outcome.stdout.splitlines()] == ["0", "1", "2"]
    assert "Wrote 3 rows to standard output" in outcome.stderr


def test_a_temperature_of_0_is_refused_as_it_is_elsewhere(shared_up: Up, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", ROWS[:1])
    options = ("--query-column", "query", "--item-column", "item", "--label", " yes", "--softmax", "--temperature", "0")
    outcome = scoreline("run", str(source), *options, "-o", str(tmp_path / "out.csv"), "--url", shared_up.url)
    assert outcome.returncode == 4
    assert "temperature" in outcome.stderr.splitlines()[-1]


@pytest.mark.parametrize("queries", [(), ("--query", "a", "--query-column", "query")])
def test_a_run_has_a_column_of_queries_or_one_query(queries: tuple[str, ...]) -> None:
    outcome = scoreline("run", "in.csv", "--item-column", "item", "--label", "a", "-o", "out.csv", *queries)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    (line,) = outcome.stderr.splitlines()
    assert "give either --query-column, the column of the queries, or --query, one text for all rows" in line


def test_the_command_reports_as_json(shared_up: Up, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", ROWS[:3])
    outcome = scoreline(
        "run", str(source), "--query-column", "query", "--item-column", "item", "--label", " yes", "--json",
        "-o", str(tmp_path / "out.csv"), "--url", shared_up.url,
    )  # fmt: skip
    figures = json.loads(outcome.stdout)
    assert (figures["rows"], figures["too_long"], figures["failed"]) == (3, 0, 0)
    assert (figures["errors"], figures["errors_file"]) == ([], None)


def test_the_command_names_the_rows_without_scores(shared_up: Up, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"item": "a"}, {"item": 5}])
    options = ("--query", "a", "--item-column", "item", "--label", " yes", "--on-error", "skip")
    command = ("run", str(source), *options, "-o")
    outcome = scoreline(*command, str(tmp_path / "out.csv"), "--json", SCORELINE_URL=shared_up.url)
    figures = json.loads(outcome.stdout)
    assert [(error["line"], error["index"]) for error in figures["errors"]] == [(2, 1)]
    assert read_lines(Path(figures["errors_file"])) == figures["errors"]
    outcome = scoreline(*command, "-", SCORELINE_URL=shared_up.url)
    assert "line 2: its 'item' is a number: make it a text" in outcome.stderr.splitlines()
    outcome = scoreline(*command, str(tmp_path / "new.csv"), SCORELINE_URL=shared_up.url)
    assert f"their cells are empty. {tmp_path / 'new.csv'}.errors.jsonl names them." in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-", "--label", "a"], "say with --input-format"),
        (["in.txt", "--label", "a"], "the ending of in.txt is not known"),
        (["s3://bucket/in.csv", "--label", "a"], "s3://bucket/in.csv is an address and no file: fetch it first"),
        (["nothing.csv", "--label", "a"], "nothing.csv can't be read: No such file"),
    ],
)
def test_a_wrong_use_of_the_command_is_one_line(arguments: list[str], says: str) -> None:
    outcome = scoreline("run", *arguments, "--query-column", "query", "--item-column", "item", "-o", "out.csv")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    (line,) = outcome.stderr.splitlines()
    assert says in line
