"""A run can be tried: without scoring, with some rows, and with other options."""

from __future__ import annotations

import json
from pathlib import Path

from scoreline import Client
from tests.scoreline.running import Up, scoreline
from tests.scoreline.runs.files import LABELS, ROWS, execute, plan_of, read_csv, write_csv


def test_a_dry_run_says_what_a_run_would_do_and_does_nothing(shared_up: Up, client: Client, tmp_path: Path) -> None:
    rows = [*ROWS, ROWS[0] | {"item": ""}, ROWS[1] | {"item": "too long " * 600}]
    source = write_csv(tmp_path / "in.csv", rows)
    labels = [word for label in LABELS for word in ("--label", label)]
    columns = ("--query-column", "query", "--item-column", "item")
    command = ("run", str(source), *columns, *labels, "-o", str(tmp_path / "out.csv"), "--dry-run")
    before = [job.id for job in client.jobs()]
    outcome = scoreline(*command, SCORELINE_URL=shared_up.url)
    assert outcome.returncode == 0, outcome.stderr
    lines = outcome.stdout.splitlines()
    assert lines[:3] == [
        "42 rows in 3 jobs. Nothing is scored or written.",
        "New columns: yes, no, label_mass",
        f"First row: query {ROWS[0]['query']!r}, item {ROWS[0]['item']!r}",
    ]
    assert "1 rows have no text." in lines
    assert "line 42: there is no text in 'item'" in outcome.stdout
    assert "the model's context is 512" in outcome.stdout
    figures = json.loads(scoreline(*command, "--json", SCORELINE_URL=shared_up.url).stdout)
    assert (figures["rows"], figures["jobs"], figures["empty"]) == (42, 3, 1)
    assert figures["prompt_tokens"] > 0
    assert [job.id for job in client.jobs()] == before
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_the_number_of_rows_can_be_limited(shared_up: Up, tmp_path: Path) -> None:
    source, target = write_csv(tmp_path / "in.csv", ROWS), tmp_path / "out.csv"
    execute(plan_of(source, target, limit=17), shared_up.url)
    assert [row["id"] for row in read_csv(target)] == [row["id"] for row in ROWS[:17]]


def test_options_of_scores_and_cells_reach_the_service_and_the_file(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    source = write_csv(tmp_path / "in.csv", [{"item": "=cmd()"}])
    labels = [word for label in LABELS for word in ("--label", label)]
    command = ("run", str(source), "--item-column", "item", "--query", "a", *labels, "-o", str(tmp_path / "out.csv"))
    outcome = scoreline(*command, "--softmax", "--temperature", "3", "--escape-formulas", SCORELINE_URL=shared_up.url)
    assert outcome.returncode == 0, outcome.stderr
    (row,) = read_csv(tmp_path / "out.csv")
    expected = client.score("a", ["=cmd()"], labels=list(LABELS), apply_softmax=True, temperature=3.0).scores[0]
    assert [float(row["yes"]), float(row["no"])] == expected
    assert row["item"] == "'=cmd()"
