"""What of a row goes into its prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scoreline import Client
from scoreline.exit_codes import CommandError
from scoreline.runs.plan import Empty, Remedy
from scoreline.runs.prompts import Columns, read_filling
from tests.scoreline.running import Up
from tests.scoreline.runs.files import LABELS, execute, plan_of, read_csv, read_lines, write_csv, write_lines

EMPTY: list[dict[str, Any]] = [
    {"query": "The capital", "item": "x"},
    {"query": "The capital", "item": ""},
    {"query": " \t", "item": "x"},
    {"query": "The capital", "item": None},
    {"query": "The capital", "item": "y"},
]


def with_empty_texts(folder: Path, ending: str) -> Path:
    if ending == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(EMPTY), folder / "in.parquet")
        return folder / "in.parquet"
    return (write_csv if ending == "csv" else write_lines)(folder / f"in.{ending}", EMPTY)


@pytest.mark.parametrize(
    ("ending", "rows"), [("csv", "lines 3, 4, 5"), ("jsonl", "lines 2, 3, 4"), ("parquet", "rows 1, 2, 3")]
)
def test_rows_without_a_text_end_the_run_with_their_numbers_in_every_format(
    shared_up: Up, tmp_path: Path, ending: str, rows: str
) -> None:
    source, target = with_empty_texts(tmp_path, ending), tmp_path / "out.jsonl"
    with pytest.raises(CommandError, match=rf"{rows}: there is no text in 'item' or 'query'; with --empty skip"):
        execute(plan_of(source, target), shared_up.url)
    finished = execute(plan_of(source, target, empty=Empty.SKIP), shared_up.url)
    assert [row["yes"] is None for row in read_lines(target)] == [False, True, True, True, False]
    assert (finished.written.empty, finished.written.failed) == (3, 0)
    assert [error["outcome"] for error in read_lines(tmp_path / "out.jsonl.errors.jsonl")] == ["empty"] * 3


def test_rows_without_a_text_are_scored_like_any_other_if_that_is_wanted(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    columns = Columns("query", "item", scores_empty=True)
    plan = plan_of(with_empty_texts(tmp_path, "jsonl"), tmp_path / "out.jsonl", columns=columns, empty=Empty.SCORE)
    execute(plan, shared_up.url)
    rows = read_lines(tmp_path / "out.jsonl")
    expected, _ = client.score("The capital", ["", "x"], labels=list(LABELS)).scores
    assert [[row["yes"], row["no"]] for row in (rows[1], rows[3])] == [expected, expected]


def test_only_some_of_many_rows_without_a_text_are_named(shared_up: Up, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", [{"query": "The capital", "item": ""} for _ in range(15)])
    with pytest.raises(CommandError, match=r"lines 2, 3, .*, 11 and 5 more: "):
        execute(plan_of(source, tmp_path / "out.csv"), shared_up.url)


@pytest.fixture
def products(tmp_path: Path) -> Path:
    rows = [{"product": f"{{item}} {n}", "price": n, "query": f"Is it {n}?", "item": f"cold {n}"} for n in range(4)]
    return write_lines(tmp_path / "in.jsonl", rows)


def test_templates_name_columns(shared_up: Up, client: Client, tmp_path: Path, products: Path) -> None:
    fillings = (
        read_filling("Of {column:price}: {query} \n", "query"),
        read_filling("The {column:product} is {item}, {column:price}! So", "item"),
    )
    options = {f"{filling.place}_template": filling.sent for filling in fillings if filling is not None}
    assert options == {"query_template": "Of {query} \n", "item_template": "The {item}! So"}
    plan = plan_of(products, tmp_path / "out.jsonl", columns=Columns("query", "item", "", *fillings), options=options)
    execute(plan, shared_up.url)
    for n, row in enumerate(read_lines(tmp_path / "out.jsonl")):
        prompt = (f"Of {n}: Is it {n}? \n", [f"The {{item}} {n} is cold {n}, {n}! So"])
        assert [row["yes"], row["no"]] == client.score(*prompt, labels=list(LABELS)).scores[0]


def test_a_run_does_not_go_on_with_another_template_that_names_columns(tmp_path: Path) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    fillings = [read_filling(text, "item") for text in ("{column:a} {item}", "{column:b} {item}")]
    plans = [plan_of(source, target, columns=Columns("q", "i", "", None, filling)) for filling in fillings]
    assert plans[0].fingerprint() != plans[1].fingerprint()


@pytest.mark.parametrize("option", ["item_template", "query_template", "instruction"])
def test_a_column_in_a_template_that_would_be_sent_as_it_stands_is_an_error(
    shared_up: Up, tmp_path: Path, products: Path, option: str
) -> None:
    plan = plan_of(products, tmp_path / "out.jsonl", options={option: "{product} of {other}: {item}"})
    with pytest.raises(CommandError, match=r"has a column 'product': write \{column:product\}") as refused:
        execute(plan, shared_up.url)
    assert str(refused.value).startswith("--" + option.replace("_", "-"))
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("template", "says"),
    [("{column:a}", "must have {item} once, and has it 0 times"), ("{column:a} {query} {item}", "has {query} between")],
)
def test_a_template_that_names_columns_has_the_place_of_its_text(template: str, says: str) -> None:
    with pytest.raises(CommandError) as refused:
        read_filling(template, "item")
    assert says in str(refused.value)


def test_a_column_that_a_template_names_must_be_there_and_have_a_text(shared_up: Up, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", [{"item": "a", "b": "c"}, {"item": "a", "b": ""}])
    for template, says in (
        ("{column:x} {item}", "has no column 'x'"),
        ("{column:b} {item}", "line 3: there is no text"),
    ):
        columns = Columns(None, "item", "Q", None, read_filling(template, "item"))
        with pytest.raises(CommandError, match=says):
            execute(plan_of(source, tmp_path / "out.csv", columns=columns, on_error=Remedy.SKIP), shared_up.url)


OWN_LABELS: list[dict[str, Any]] = [
    {"query": "The capital", "item": " of France", "labels": [" yes", " no", "a"]},
    {"query": "The capital", "item": " of Japan", "labels": [" no"]},
    {"query": "The city", "item": " of Bonn", "labels": [" no", " yes"]},
]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_rows_may_have_labels_of_their_own(shared_up: Up, client: Client, tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    source = write_lines(tmp_path / "in.jsonl", OWN_LABELS)
    target, back = tmp_path / f"out.{ending}", tmp_path / "back.jsonl"
    columns = Columns("query", "item", labels=("labels",))
    execute(plan_of(source, target, labels=(), columns=columns), shared_up.url)
    # The lists of a CSV are read as they were written.
    execute(plan_of(target, back, labels=(), columns=columns, prefix="b_"), shared_up.url)
    for row, written in zip(OWN_LABELS, read_lines(back), strict=True):
        scores = client.score(row["query"], [row["item"]], labels=row["labels"]).scores[0]
        assert written["b_scores"] == scores
        assert written["b_best_label"] == row["labels"][scores.index(max(scores))]
        first = json.loads(written["scores"]) if ending == "csv" else written["scores"]
        assert (first, written["best_label"]) == (scores, written["b_best_label"])


def test_labels_may_stand_in_several_columns_and_a_wrong_one_is_named_by_its_row(shared_up: Up, tmp_path: Path) -> None:
    rows = [{"item": "a", "x": " yes", "y": " no"}, {"item": "a", "x": "", "y": " no"}, {"item": "b", "x": "", "y": ""}]
    source, columns = write_csv(tmp_path / "in.csv", rows), Columns(None, "item", "Q: ", labels=("x", "y"))
    execute(plan_of(source, tmp_path / "out.csv", labels=(), columns=columns, empty=Empty.SKIP), shared_up.url)
    counts = [len(json.loads(row["scores"] or "[]")) for row in read_csv(tmp_path / "out.csv")]
    assert counts == [2, 1, 0]
    write_csv(source, [rows[0], rows[1] | {"y": " several tokens"}])
    with pytest.raises(CommandError, match=r"line 3: .*token"):
        execute(plan_of(source, tmp_path / "two.csv", labels=(), columns=columns), shared_up.url)
