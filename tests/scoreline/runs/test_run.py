"""A run writes the rows of its input in their order, with their scores, whatever the formats are."""

from __future__ import annotations

import gzip
import json
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scoreline import Client, ScorelineError
from scoreline.exit_codes import CommandError
from scoreline.runs.plan import Empty, Remedy
from scoreline.runs.prompts import Columns
from tests.scoreline.client.unreliable import answering, passed_on
from tests.scoreline.running import CommandUp, Up, scoreline
from tests.scoreline.runs.files import (
    LABELS,
    ROWS,
    execute,
    expected_scores,
    plan_of,
    read_csv,
    read_lines,
    write_csv,
    write_lines,
)

NEW = ("yes", "no", "label_mass")


def numbers(rows: list[dict[str, Any]]) -> list[list[float]]:
    return [[float(row[name]) for name in NEW] for row in rows]


def test_the_rows_of_a_csv_file_keep_their_order_and_get_the_scores_of_a_call(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    source, target = write_csv(tmp_path / "in.csv", ROWS), tmp_path / "out.csv"
    finished = execute(plan_of(source, target), shared_up.url)
    rows = read_csv(target)
    assert list(rows[0]) == [*ROWS[0], *NEW]
    assert [{name: row[name] for name in ROWS[0]} for row in rows] == ROWS
    assert numbers(rows) == expected_scores(client, ROWS)
    assert (finished.written.rows, finished.written.windows) == (40, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


def test_rows_with_the_same_query_are_one_job_in_each_window(shared_up: Up, client: Client, tmp_path: Path) -> None:
    before = {job.id for job in client.jobs()}
    execute(plan_of(write_csv(tmp_path / "in.csv", ROWS), tmp_path / "out.csv", rows=20), shared_up.url)
    jobs = [job for job in client.jobs() if job.id not in before]
    assert sorted(job.total_items for job in jobs) == [6, 6, 7, 7, 7, 7]
    assert {job.priority for job in jobs} == {"bulk"}


def test_a_file_whose_queries_are_all_different_takes_few_requests_and_loses_no_row(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [{"query": f"The capital of {n}", "item": f" is {n}"} for n in range(300)]
    rows[100] |= {"item": "long " * 20_000}
    source, target = write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    with answering(lambda got: passed_on(shared_up.url, got)) as server:
        plan = plan_of(source, target, rows=300, on_too_long=Remedy.SKIP)
        finished = execute(plan, server.url)
        assert len(server.got) < 60
    assert (finished.written.rows, finished.written.too_long, finished.written.failed) == (300, 1, 0)
    written = read_lines(target)
    assert [row["query"] for row in written] == [row["query"] for row in rows]
    assert [n for n, row in enumerate(written) if row["yes"] is None] == [100]
    scored = range(30, 300, 30)
    assert numbers([written[n] for n in scored]) == expected_scores(client, [rows[n] for n in scored])


@pytest.mark.parametrize("ending", ["tsv", "jsonl", "parquet"])
def test_every_format_is_read_and_written(shared_up: Up, tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    rows = [row | {"note": note} for row, note in zip(ROWS[:5], ('"', "a\tb", "two\nlines", "é,", ""), strict=True)]
    source = write_csv(tmp_path / "in.csv", rows)
    first, second = tmp_path / f"first.{ending}", tmp_path / "second.csv"
    execute(plan_of(source, first, rows=2), shared_up.url)
    execute(plan_of(first, second, rows=2, prefix="again "), shared_up.url)
    found = read_csv(second)
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    assert [[row[name] for name in NEW] for row in found] == [[row[f"again {name}"] for name in NEW] for row in found]


def test_values_of_json_lines_keep_their_types(shared_up: Up, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows: list[dict[str, Any]] = [
        {"query": "The capital", "item": " of France", "n": 1, "list": [1, 2]},
        {"query": "The capital", "item": " of Japan", "n": 2.5, "list": None, "more": True},
        {"query": [70, 71], "item": [72], "n": "text", "list": [3]},
    ]
    source = write_lines(tmp_path / "in.jsonl", rows)
    options: dict[str, Any] = {"columns": Columns("query", "item"), "rows": 2}
    execute(plan_of(source, tmp_path / "out.jsonl", **options), shared_up.url)
    written = read_lines(tmp_path / "out.jsonl")
    assert [{name: row[name] for name in row if name not in NEW} for row in written] == rows
    execute(plan_of(source, tmp_path / "out.parquet", **options), shared_up.url)
    execute(plan_of(tmp_path / "out.parquet", tmp_path / "back.jsonl", prefix="b_", **options), shared_up.url)
    assert [row["n"] for row in read_lines(tmp_path / "back.jsonl")] == ["1.0", "2.5", "text"]
    assert [row["list"] for row in read_lines(tmp_path / "back.jsonl")] == [[1, 2], None, [3]]


def test_a_text_that_looks_like_token_ids_is_a_query_of_its_own(shared_up: Up, client: Client, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"query": "[70, 71]", "item": " is"}, {"query": [70, 71], "item": [72]}]
    execute(plan_of(write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"), shared_up.url)
    assert numbers(read_lines(tmp_path / "out.jsonl")) == expected_scores(client, rows)


def test_a_template_brings_its_labels_and_the_relevance(shared_up: Up, client: Client, tmp_path: Path) -> None:
    plan = plan_of(
        write_csv(tmp_path / "in.csv", ROWS[:3]), tmp_path / "out.csv", labels=(), options={"template": "yes-no"}
    )
    execute(plan, shared_up.url)
    for row in read_csv(tmp_path / "out.csv"):
        ranked = client.rerank(row["query"], [row["item"]], template="yes-no")
        assert float(row["relevance"]) == ranked.results[0].relevance_score


@pytest.mark.parametrize(
    "options",
    [
        {"apply_softmax": True},
        {"apply_softmax": True, "item_template": "{item}."},
        {"apply_softmax": True, "label_scoring": "sequence"},
    ],
)
def test_the_label_mass_is_a_column_of_every_run(
    shared_up: Up, client: Client, tmp_path: Path, options: dict[str, Any]
) -> None:
    execute(plan_of(write_csv(tmp_path / "in.csv", ROWS[:1]), tmp_path / "out.csv", options=options), shared_up.url)
    (row,) = read_csv(tmp_path / "out.csv")
    expected = client.score(row["query"], [row["item"]], labels=list(LABELS), **options).label_mass
    assert expected is not None
    assert float(row["label_mass"]) == expected[0]


SEQUENCE_TEMPLATE = """
query = "{query}"
item = "{item}. The guest had"
labels = [" a wonderful experience", " a dreadful evening"]
relevance = "softmax(0)"
label_scoring = "sequence"
"""


@pytest.mark.slow
def test_a_template_says_how_its_labels_are_scored(start_up: Callable[..., CommandUp], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SEQUENCE_TEMPLATE)
    up = start_up(SCORELINE_TEMPLATE=str(tmp_path / "mine.toml"))
    up.wait_until_ready()
    source = write_csv(tmp_path / "in.csv", ROWS[:3])
    execute(plan_of(source, tmp_path / "out.csv", labels=(), options={"template": "mine"}), up.url)
    with Client(up.url) as client:
        for row in read_csv(tmp_path / "out.csv"):
            expected = client.score(row["query"], [row["item"]], template="mine").scores
            assert [float(row["a wonderful experience"]), float(row["a dreadful evening"])] == expected[0]


@pytest.fixture
def too_long(tmp_path: Path) -> Path:
    """A file in which some rows have more tokens than the model takes."""
    rows = [row | {"item": "too long " * 600} if n % 3 == 1 else row for n, row in enumerate(ROWS)]
    rows[5] = rows[5] | {"query": "too long " * 600}
    return write_csv(tmp_path / "in.csv", rows)


def test_rows_that_are_too_long_can_be_skipped(shared_up: Up, client: Client, tmp_path: Path, too_long: Path) -> None:
    finished = execute(plan_of(too_long, tmp_path / "out.csv", on_too_long=Remedy.SKIP), shared_up.url)
    rows = read_csv(tmp_path / "out.csv")
    empty = [n for n, row in enumerate(rows) if [row[name] for name in NEW] == ["", "", ""]]
    assert empty == sorted({*range(1, 40, 3), 5})
    assert (finished.written.too_long, finished.written.failed) == (len(empty), 0)
    good = [n for n in range(40) if n not in empty]
    assert numbers([rows[n] for n in good]) == expected_scores(client, [ROWS[n] for n in good])


def test_a_row_that_is_too_long_ends_the_run_with_its_line_unless_it_may_be_skipped(
    shared_up: Up, tmp_path: Path, too_long: Path
) -> None:
    with pytest.raises(CommandError, match=r"in.csv, line 3: .* 512; with --on-too-long skip") as refused:
        execute(plan_of(too_long, tmp_path / "out.csv", concurrency=1), shared_up.url)
    assert refused.value.exit_code == 4
    execute(plan_of(too_long, tmp_path / "out.csv", on_too_long=Remedy.SKIP), shared_up.url)
    assert len(read_csv(tmp_path / "out.csv")) == 40


def test_rows_with_other_errors_can_be_skipped(shared_up: Up, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"query": "", "item": "a"},
        {"query": "a", "item": 5},
        {"query": "a", "item": "b"},
        {"item": "b"},
        {"query": "a", "item": "\ud800"},
        {"query": "a", "item": [70]},
        {"query": "\ud800", "item": "b"},
        {"query": [70, 10**6], "item": [70]},
    ]
    source = write_lines(tmp_path / "in.jsonl", rows)
    plan = plan_of(source, tmp_path / "out.jsonl", on_error=Remedy.SKIP, empty=Empty.SKIP)
    finished = execute(plan, shared_up.url)
    scored = [n for n, row in enumerate(read_lines(tmp_path / "out.jsonl")) if row["yes"] is not None]
    assert scored == [2]
    assert (finished.written.too_long, finished.written.empty, finished.written.failed) == (0, 2, 5)
    with pytest.raises(CommandError, match=r"line [25678]: "):
        execute(plan_of(source, tmp_path / "other.jsonl", empty=Empty.SKIP), shared_up.url)


def test_packed_files_are_read_and_written(shared_up: Up, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", ROWS)
    packed = tmp_path / "in.csv.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    execute(plan_of(packed, tmp_path / "out.csv.gz"), shared_up.url)
    execute(plan_of(source, tmp_path / "out.csv"), shared_up.url)
    assert gzip.decompress((tmp_path / "out.csv.gz").read_bytes()) == (tmp_path / "out.csv").read_bytes()
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(CommandError, match=r"in\.csv\.gz can't be read any further: ") as refused:
        execute(plan_of(packed, tmp_path / "other.csv"), shared_up.url)
    assert refused.value.exit_code == 4


@pytest.mark.parametrize("name", ["out.csv", "out.csv.journal", "out.csv.part", "out.csv.errors.jsonl"])
def test_a_run_does_not_write_where_it_reads(shared_up: Up, tmp_path: Path, name: str) -> None:
    source = write_csv(tmp_path / name, ROWS)
    content = source.read_bytes()
    plan = replace(plan_of(tmp_path / "in.csv", tmp_path / "out.csv", restart=True), source=str(source))
    with pytest.raises(CommandError, match="is the input, and -o") as refused:
        execute(plan, shared_up.url)
    assert (refused.value.exit_code, source.read_bytes()) == (2, content)


def test_rows_of_parquet_are_counted_from_0(shared_up: Up, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [ROWS[0], ROWS[1] | {"item": "too long " * 600}]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    with pytest.raises(CommandError, match=r"in\.parquet, row 1: "):
        execute(plan_of(tmp_path / "in.parquet", tmp_path / "out.csv"), shared_up.url)


def test_rows_without_scores_are_named_in_a_file_beside_the_output(
    shared_up: Up, tmp_path: Path, too_long: Path
) -> None:
    """They are those of all windows, in the order of the rows. A run without such rows removes the file."""
    target, beside = tmp_path / "out.csv", tmp_path / "out.csv.errors.jsonl"
    finished = execute(plan_of(too_long, target, on_too_long=Remedy.SKIP), shared_up.url)
    found = read_lines(beside)
    assert found == finished.errors
    indices = [n for n, row in enumerate(read_csv(target)) if row["yes"] == ""]
    assert [error["index"] for error in found] == indices
    assert [error["line"] for error in found] == [index + 2 for index in indices]
    assert {error["outcome"] for error in found} == {"too_long"}
    assert all("the model's context is 512" in error["reason"] for error in found)
    target.unlink()
    with pytest.raises(CommandError, match=r"errors\.jsonl is there already: --restart replaces it"):
        execute(plan_of(too_long, target, on_too_long=Remedy.SKIP), shared_up.url)
    write_csv(too_long, ROWS)
    execute(plan_of(too_long, target, restart=True), shared_up.url)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


def test_a_line_that_can_not_be_read_keeps_its_place_and_is_named(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    lines = [json.dumps(row) for row in ROWS]
    lines[20] = lines[20][:-9]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    plan = plan_of(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    with pytest.raises(CommandError, match=r"line 21: it is not JSON: .*; with --on-error skip") as refused:
        execute(plan, shared_up.url)
    assert refused.value.exit_code == 4
    finished = execute(replace(plan, on_error=Remedy.SKIP), shared_up.url)
    rows = read_lines(tmp_path / "out.jsonl")
    assert rows.pop(20) == dict.fromkeys(NEW)
    assert numbers(rows) == expected_scores(client, ROWS[:20] + ROWS[21:])
    (error,) = finished.errors
    assert (error["line"], error["index"], error["outcome"]) == (21, 20, "failed")
    assert error["reason"].startswith("it is not JSON")


def test_a_wrong_option_ends_the_run_and_leaves_nothing_behind(shared_up: Up, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", ROWS)
    with pytest.raises(ScorelineError, match="not one"):
        execute(plan_of(source, tmp_path / "out.csv", labels=(" several tokens",)), shared_up.url)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv"]
    execute(plan_of(source, tmp_path / "out.csv"), shared_up.url)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"query,item\na\n", "line 2: it has 1 values, and there are 2 columns"),
        (b"query,item,query\n", "several columns 'query'"),
        (b"query,item\n\xff,b\n", "line 2: it is not UTF-8"),
        (b"query,text\na,b\n", "has no column 'item'; it has 'query', 'text'"),
        (b"query,item,yes\na,b,c\n", "two columns 'yes'"),
    ],
)
def test_a_file_that_can_not_be_read_is_one_line(shared_up: Up, tmp_path: Path, content: bytes, says: str) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes(content)
    with pytest.raises(CommandError) as refused:
        execute(plan_of(source, tmp_path / "out.csv"), shared_up.url)
    assert says in str(refused.value)
    assert not (tmp_path / "out.csv").exists()


def test_a_byte_order_mark_and_blank_lines_are_no_rows(shared_up: Up, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes("\ufeffquery,item\r\n\r\na,b\r\n".encode())
    execute(plan_of(tmp_path / "in.csv", tmp_path / "out.csv"), shared_up.url)
    (row,) = read_csv(tmp_path / "out.csv")
    assert (row["query"], row["item"]) == ("a", "b")


def test_a_file_without_rows_gives_a_file_without_rows(shared_up: Up, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("query,item\n")
    execute(plan_of(tmp_path / "in.csv", tmp_path / "out.csv"), shared_up.url)
    assert (tmp_path / "out.csv").read_text() == "query,item,yes,no,label_mass\n"
    execute(plan_of(tmp_path / "in.csv", tmp_path / "out.jsonl.gz"), shared_up.url)
    assert (tmp_path / "out.jsonl.gz").read_bytes() == gzip.compress(b"", mtime=0)


def test_all_rows_may_have_one_query_that_is_no_column(shared_up: Up, client: Client, tmp_path: Path) -> None:
    rows = [{"item": row["item"]} for row in ROWS[:3]]
    source = write_csv(tmp_path / "in.csv", rows)
    labels = [word for label in LABELS for word in ("--label", label)]
    command = ("run", str(source), "--item-column", "item", *labels, "-o", str(tmp_path / "out.csv"))
    outcome = scoreline(*command, "--query", "Review: ", SCORELINE_URL=shared_up.url)
    assert outcome.returncode == 0, outcome.stderr
    written = read_csv(tmp_path / "out.csv")
    assert list(written[0]) == ["item", *NEW]
    assert numbers(written) == expected_scores(client, [{"query": "Review: ", **row} for row in rows])


def test_a_run_with_another_query_does_not_go_on_where_the_first_one_was(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", ROWS)
    plan = plan_of(source, tmp_path / "out.csv", columns=Columns(None, "item", "a"))
    assert plan.fingerprint() != replace(plan, columns=Columns(None, "item", "b")).fingerprint()
    assert plan.fingerprint() != replace(plan, columns=Columns("a", "item")).fingerprint()


def test_a_run_doubts_the_scores_of_all_of_its_rows_together(shared_up: Up, tmp_path: Path) -> None:
    """Each query is a job of its own, whose one row is no reason to doubt a label."""
    source = write_csv(tmp_path / "in.csv", [{"query": f"Query {n}", "item": " is"} for n in range(100)])
    labels = tuple(string.ascii_letters)
    warnings = execute(plan_of(source, tmp_path / "out.csv", labels=labels), shared_up.url).warnings
    rows = read_csv(tmp_path / "out.csv")
    winners = {max(labels, key=lambda label: float(row[label])) for row in rows}
    small = sum(float(row["label_mass"]) < 0.1 for row in rows)
    assert sum(f"for {small} of 100 rows, such as line " in warning for warning in warnings) == (small >= 10)
    never = [repr(label) for label in labels if label not in winners]
    assert f"{', '.join(never[:2])} and {never[2]} are the most probable of none of 100 rows" in warnings[-1]
