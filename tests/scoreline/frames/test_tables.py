"""Tables of every kind keep what they have, and get the scores that calls give."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from scoreline import Client, YesNo, frames
from scoreline.frames import CostError, TableError
from tests.scoreline.frames.conftest import ITEMS, LABELS, NEW, numbers
from tests.scoreline.running import Up
from tests.services import wait_until

TABLES: dict[str, Callable[[pa.Table], Any]] = {
    "Arrow": lambda table: table,
    "a batch of Arrow": lambda table: pa.RecordBatch.from_arrays(
        [column.combine_chunks() for column in table.columns], schema=table.schema
    ),
    "a stream of Arrow": lambda table: table.to_reader(),
    "pandas": lambda table: table.to_pandas().set_index("number"),
    "Polars": pl.from_arrow,
    "a lazy frame of Polars": lambda table: pl.from_arrow(table).lazy(),  # type: ignore[union-attr]
}


def whole(table: Any) -> Any:
    """Return a table that is in memory."""
    if isinstance(table, pa.RecordBatchReader):
        return table.read_all()
    return table.collect() if isinstance(table, pl.LazyFrame) else table


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_each_kind_gets_the_scores_of_a_call_and_keeps_the_rest(
    reviews: pa.Table, asked: dict[str, Any], expected: list[list[float]], small_windows: int, kind: str
) -> None:
    given = TABLES[kind](reviews)
    found = whole(frames.score(given, "review", **asked))
    assert numbers(found) == expected
    before = whole(TABLES[kind](reviews))
    if isinstance(before, pd.DataFrame):
        pd.testing.assert_frame_equal(found.drop(columns=NEW), before)
        assert list(found.columns) == [*before.columns, *NEW]
    elif isinstance(before, pl.DataFrame):
        assert found.drop(NEW).equals(before)
        assert found.schema == {**before.schema, **dict.fromkeys(NEW, pl.Float64)}
    else:
        assert found.select(before.schema.names).equals(before)
        assert found.schema.names == [*before.schema.names, *NEW]
        assert found.schema.metadata == before.schema.metadata == {b"written by": b"hand"}


@pytest.mark.parametrize("kind", ["Arrow", "a stream of Arrow", "pandas", "Polars", "a lazy frame of Polars"])
def test_an_output_has_the_whole_table_and_an_interrupted_one_is_gone_on_with(
    reviews: pa.Table,
    asked: dict[str, Any],
    expected: list[list[float]],
    client: Client,
    small_windows: int,
    tmp_path: Path,
    kind: str,
) -> None:
    output = tmp_path / "scored.parquet"
    place = 20
    spoilt = reviews.to_pylist()
    spoilt[place]["review"] = None
    with pytest.raises(TableError, match=rf"row {place}: there is no text in 'review'"):
        frames.score(TABLES[kind](pa.Table.from_pylist(spoilt, reviews.schema)), "review", output=output, **asked)
    submitted = len(list(client.jobs()))

    found = whole(frames.score(TABLES[kind](reviews), "review", output=output, **asked))
    # Two windows are under way at a time; those before them were written.
    written = place // small_windows - 2
    assert len(list(client.jobs())) - submitted <= -(-len(ITEMS) // small_windows) - written
    assert numbers(found) == expected
    columns = [name for name in reviews.column_names if kind != "pandas" or name != "number"]  # its index
    assert pq.read_schema(output).names == [*columns, *NEW]
    assert [path.name for path in tmp_path.iterdir()] == [output.name]
    with pytest.raises(TableError, match=r"scored\.parquet is there already: restart=True replaces it"):
        frames.score(TABLES[kind](reviews), "review", output=output, **asked)


def test_a_lazy_frame_scores_what_is_wanted_of_it_and_nothing_before_it_is_collected(
    reviews: pa.Table, asked: dict[str, Any], expected: list[list[float]], client: Client
) -> None:
    frame = pl.from_arrow(reviews).lazy()  # type: ignore[union-attr]
    before = len(list(client.jobs()))
    found = frames.score(frame, "review", **asked)
    assert found.collect_schema().names() == [*reviews.column_names, *NEW]
    assert found.select("number", "kind").collect().equals(frame.select("number", "kind").collect())
    assert len(list(client.jobs())) == before

    some = found.filter(pl.col("yes") > pl.col("no")).select("number", "yes").collect()
    assert some.rows() == [(n, row[0]) for n, row in enumerate(expected) if row[0] > row[1]]
    first = found.select("yes").head(3).collect()
    assert first["yes"].to_list() == [row[0] for row in expected[:3]]
    assert sorted(job.total_items for job in list(client.jobs())[:2]) == [3, len(ITEMS)]


def test_rows_that_a_filter_leaves_out_are_not_scored_and_columns_that_nobody_wants_are_not_read(
    reviews: pa.Table, asked: dict[str, Any], expected: list[list[float]], client: Client
) -> None:
    read: list[list[str]] = []

    def note(frame: pl.DataFrame) -> pl.DataFrame:
        read.append(frame.columns)
        return frame

    whole = pl.DataFrame(reviews)
    seen = whole.lazy().map_batches(
        note, projection_pushdown=True, predicate_pushdown=True, validate_output_schema=False
    )
    before = {job.id for job in client.jobs()}
    scored = frames.score(seen, "review", **asked)
    found = scored.filter(pl.col("number") >= 20).select("number", "yes").collect()
    assert found.rows() == [(n, expected[n][0]) for n in range(20, len(ITEMS))]
    assert len(read) == 1
    assert [job.total_items for job in client.jobs() if job.id not in before] == [len(ITEMS) - 20]
    assert set(read[-1]) == {"number", "review"}
    both = scored.filter(pl.col("number") >= 20, pl.col("yes") > 0.2).select("yes").collect()
    assert both["yes"].to_list() == [row[0] for row in expected[20:] if row[0] > 0.2]


def test_memory_does_not_grow_with_what_is_only_counted_or_written() -> None:
    source = frames.tables.table_of(pa.table({"review": ["a"] * 50_000})).source(["review"])
    assert sum(1 for _ in source) == 50_000
    assert not source._kept


@pytest.mark.parametrize("kind", [*TABLES])
def test_a_table_without_rows_gets_its_columns(reviews: pa.Table, asked: dict[str, Any], kind: str) -> None:
    found = whole(frames.score(TABLES[kind](reviews.slice(0, 0)), "review", **asked))
    names = (
        found.schema.names if hasattr(found, "schema") and not isinstance(found, pl.DataFrame) else list(found.columns)
    )
    assert (len(found), list(names)[-3:]) == (0, NEW)


def test_columns_are_told_apart_by_their_names(asked: dict[str, Any]) -> None:
    numbered = pd.DataFrame({0: ["a", "b"], 1: [1, 2]})
    found = frames.score(numbered, "0", **asked)
    assert list(found.columns) == [0, 1, *NEW]
    decided = frames.decide(numbered, {"self": YesNo("Is it a letter?")}, state_column="0", url=asked["url"])
    assert list(decided.columns) == [0, 1, "self"]
    twice = pa.table([["a"], ["b"]], names=["review", "review"])
    for table in (twice, pd.DataFrame([["a", "b"]], columns=["review", "review"])):
        with pytest.raises(TableError, match="the table has two columns 'review'"):
            frames.score(table, "review", **asked)


def test_an_output_keeps_nanoseconds_and_categories(asked: dict[str, Any], tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"review": ["a", "b"], "at": pl.Series([123456789123456789, 1]).cast(pl.Datetime("ns")), "kind": ["x", "y"]},
        schema_overrides={"kind": pl.Enum(["x", "y"])},
    )
    found = frames.score(frame.lazy(), "review", output=tmp_path / "out[1].parquet", **asked).collect()
    assert found.drop(NEW).equals(frame)
    assert found.schema["kind"] == frame.schema["kind"]


@pytest.mark.parametrize("kind", ["Arrow", "Polars", "a lazy frame of Polars"])
def test_an_output_of_values_that_python_can_not_hold_is_a_table_error(
    asked: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    days = pa.array([0] * 1_500 + [10**7], pa.int32()).cast(pa.date32())
    table = TABLES[kind](pa.table({"review": ["a"] * len(days), "day": days}))
    with pytest.raises(TableError, match="the table: among the 1,000 rows from row 1000 on, a value can't be read: "):
        frames.score(table, "review", output=tmp_path / "out.parquet", **asked)


def test_a_stream_is_read_as_its_scores_are_taken(asked: dict[str, Any], small_windows: int) -> None:
    read = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for item in ITEMS:
            read += 1
            yield pa.record_batch({"review": [item]})

    stream = pa.RecordBatchReader.from_batches(pa.schema({"review": pa.string()}), batches())
    scored = frames.score(stream, "review", **asked)
    assert len(scored.read_next_batch()) == 1
    # One window is taken; two are ready, one waits to be, two are being scored, and of the next one a row is read.
    assert read <= 6 * small_windows + 1
    assert sum(map(len, scored)) == len(ITEMS) - 1


def test_whoever_stops_reading_a_stream_has_its_jobs_cancelled(
    shared_up: Up, client: Client, asked: dict[str, Any], small_windows: int
) -> None:
    before = {job.id for job in client.jobs()}

    def statuses() -> list[str]:
        return [job.status for job in client.jobs() if job.id not in before]

    batches = (pa.record_batch({"review": [f"Room {n} was small."]}) for n in range(1_000))
    stream = pa.RecordBatchReader.from_batches(pa.schema({"review": pa.string()}), batches)
    scored = frames.score(stream, "review", **asked)
    scored.read_next_batch()
    wait_until(lambda: statuses().count("succeeded") >= 5, "several windows are ready")
    with shared_up.worker_frozen():
        for _ in range(2 * small_windows):
            scored.read_next_batch()
        wait_until(lambda: "queued" in statuses(), "the next window waits")
        del scored
        assert set(statuses()) == {"succeeded", "cancelled"}


def test_rows_may_have_queries_and_labels_of_their_own(client: Client, asked: dict[str, Any]) -> None:
    rows = [{"q": f"Query {n % 2}", "item": f" item {n}", "labels": LABELS[: 1 + n % 2]} for n in range(6)]
    found = frames.score(pl.DataFrame(rows), "item", query_column="q", label_columns=["labels"], url=asked["url"])
    for row, cells in zip(rows, found.iter_rows(named=True), strict=True):
        expected = client.score(row["q"], [row["item"]], labels=row["labels"])
        assert cells["scores"] == pytest.approx(expected.scores[0])
        assert cells["best_label"] in row["labels"]


def test_a_table_is_ranked_by_the_template_of_the_model(client: Client, asked: dict[str, Any], tmp_path: Path) -> None:
    documents = ["The train leaves at nine.", "Water the fern."]
    table = pl.DataFrame({"q": ["plants"] * 2, "document": documents, "positive": [1, 2]})
    found = frames.rerank(table, "document", query_column="q", url=asked["url"])
    ranked = client.rerank("plants", documents).results
    assert found.columns == ["q", "document", "positive", "relevance"]
    expected = [one.relevance_score for one in sorted(ranked, key=lambda document: document.index)]
    assert found["relevance"].to_list() == expected
    # The labels of the template are not columns, so their names are free; and their tokens are counted.
    (model,) = client.models()
    (template,) = [one for one in model.templates if one.name == model.template]
    table = table.with_columns(pl.lit(1).alias(template.labels[0].strip()), label_mass=1)
    again = frames.rerank(table, "document", query_column="q", url=asked["url"], output=tmp_path / "ranked.parquet")
    assert again.equals(table.with_columns(found["relevance"]))
    cost = frames.cost(table.lazy(), document_column="document", query_column="q", url=asked["url"])
    assert cost.prompt_tokens == client.dry_run("plants", documents, template=template.name).prompt_tokens
    with pytest.raises(CostError):
        frames.rerank(table, "document", query_column="q", url=asked["url"], max_tokens=(cost.prompt_tokens or 0) - 1)


def test_questions_are_answered_about_a_column_or_an_object_of_several(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    questions: dict[str, Any] = {
        "urgent": YesNo("Is it urgent?"),
        "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": None, "sales": None}},
        "mood": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "angry"]},
    }
    table = pd.DataFrame({"subject": ["Late", "Lost"], "body": ["Where is it?", "It is gone."]})
    found = frames.decide(table, questions, state_columns=["subject", "body"], url=shared_up.url)
    assert list(found.columns[2:]) == ["urgent", "team", "team_confidence", "mood", "mood_confidence"]
    for row in found.to_dict("records"):
        decision = client.decide({"subject": row["subject"], "body": row["body"]}, questions)
        assert row["urgent"] == pytest.approx(decision["urgent"])
        assert (row["team"], row["mood"]) == (decision["team"], pytest.approx(decision["mood"]))

    file = tmp_path / "questions.json"
    file.write_text('{"urgent": {"type": "noul", "instructions": "Is it urgent?"}}')
    again = frames.decide(table, file, state_column="body", url=shared_up.url, column_prefix="is_")
    assert again["is_urgent"].between(0, 1).all()


def test_rows_that_cannot_be_scored_have_nulls_if_that_is_wanted(asked: dict[str, Any]) -> None:
    table = pa.table({"review": ["clean", None, "  ", "long " * 20_000]})
    found = frames.score(table, "review", **asked, empty="skip", on_too_long="skip")
    assert [value is None for value in found["yes"].to_pylist()] == [False, True, True, True]
    assert found.schema.field("yes").type == pa.float64()


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"revue": ["a"]}, {}, r"the table has no column 'review'; it has 'revue'"),
        ({"review": [1]}, {}, r"row 0: its 'review' is a number: make it a text; with on_error=\"skip\" its cells"),
        ({"review": ["a", None]}, {}, r"row 1: there is no text in 'review'; with empty=\"skip\""),
        ({"review": ["a", "b " * 5000]}, {}, r"row 1: .*; with on_too_long=\"skip\" its cells are left empty"),
        ({"review": ["a"], "yes": [1]}, {}, r"two columns 'yes': .* as with column_prefix=\"p_\""),
        ({"review": ["a"]}, {"labels": ()}, r"there is nothing to score: give labels, or a template"),
        ({"review": ["a"]}, {"labels": " yes"}, r"labels must be a list of texts"),
        ({"review": ["a"]}, {"query_column": "review"}, r"give either query_column, .*, or query"),
        ({"review": ["a"]}, {"on_error": "ignore"}, r"on_error must be one of 'fail', 'skip', not 'ignore'"),
        ({"review": ["a"]}, {"template": "none"}, r"the service has no template 'none'"),
        (
            {"review": ["a"]},
            {"output": "scored.csv"},
            r"output must be the name of a Parquet file, and not scored\.csv",
        ),
        ({"review": ["a"]}, {"output": "a.parquet", "run": "a", "restart": True}, r"restart does not go with run"),
        ({"review": ["a"]}, {"concurrency": 0}, r"concurrency must be from 1 to 500, not 0"),
        ({"review": ["a"]}, {"run": " "}, r"run must be a name, and not empty"),
        ({"review": ["a"]}, {"run": 11}, r"run must be a text, not 11"),
        ({"review": ["a"]}, {"label_columns": [], "query_column": 0, "query": None}, r"^query_column must be a text"),
        ({"review": ["a"]}, {"patience": -1}, r"patience must be at least 0, not -1"),
        ({"review": ["a"]}, {"label_columns": ["review"]}, r"rows of label_columns have no other labels"),
        ({"review": ["a"]}, {"label_columns": "review"}, r"label_columns must be a list of texts"),
        ({"Review": ["a"]}, {}, r"it has 'Review': write the name as it stands in the file, with its case"),
        ({"review": ["a"]}, {"item_template": "{item} {column:city}"}, r"the table has no column 'city'"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_a_caller_of_python(
    asked: dict[str, Any], table: dict[str, list[Any]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TableError, match=message) as caught:
        frames.score(pl.DataFrame(table), "review", **{**asked, **options})
    assert "--" not in str(caught.value)


def test_what_is_no_table_and_options_that_there_are_not_are_type_errors(asked: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="a list is no table of Arrow, pandas or Polars"):
        frames.score([{"review": "a"}], "review", **asked)
    with pytest.raises(TypeError, match="a Series is a column and no table"):
        frames.score(pl.Series("review", ["a"]), "review", **asked)
    with pytest.raises(TypeError, match="there is no option 'templat' here: did you mean 'template'"):
        frames.score(pa.table({"review": ["a"]}), "review", **asked, templat="yes_no")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="there is no option 'lables' here"):
        frames.score(pa.table({"review": ["a"]}), "review", **asked, lables=[" a"])  # type: ignore[call-arg]
    with pytest.raises(TableError, match="item_column must be a text, not 0"):
        frames.score(pd.DataFrame({0: ["a"]}), 0, **asked)  # type: ignore[arg-type]
    with pytest.raises(TableError, match="state_columns must be a list of different names"):
        frames.decide(pl.DataFrame({"a": ["x"], "b": ["y"]}), {"angry": YesNo("Angry?")}, state_columns="ab")
    mixed = pd.DataFrame({"review": ["a", 1, [2]]})
    with pytest.raises(TableError, match="the table has a column of which no column of Arrow can be made"):
        frames.score(mixed, "review", **asked)


def test_caps_are_exact_and_hold_before_anything_is_scored(
    reviews: pa.Table, asked: dict[str, Any], client: Client
) -> None:
    found = frames.cost(reviews, item_column="review", **asked)
    assert found.items == len(ITEMS)
    assert found.prompt_tokens == client.dry_run("Review: ", ITEMS, labels=LABELS).prompt_tokens
    before = len(list(client.jobs()))
    caps: list[dict[str, Any]] = [{"max_items": found.items - 1}, {"max_tokens": (found.prompt_tokens or 0) - 1}]
    for cap in caps:
        with pytest.raises(CostError, match=r"are more than the [\d,]+ that max_(items|tokens) leaves: none is scored"):
            frames.score(reviews, "review", **asked, **cap)
    assert len(list(client.jobs())) == before
    frames.score(reviews, "review", **asked, max_items=found.items, max_tokens=found.prompt_tokens)
    with pytest.raises(TableError, match="need a table that can be read twice"):
        frames.score(reviews.to_reader(), "review", **asked, max_items=1)


def test_the_tokens_of_many_queries_are_summed(asked: dict[str, Any], client: Client) -> None:
    rows = [{"q": f"Query {n}", "item": f" item {n} of {m}"} for n in range(40) for m in range(3)]
    found = frames.cost(pl.DataFrame(rows), item_column="item", query_column="q", labels=LABELS, url=asked["url"])
    items = [(row["q"], row["item"]) for row in rows]
    expected = sum(client.dry_run(query, [item], labels=LABELS).prompt_tokens for query, item in items)
    assert found == frames.Cost(len(rows), expected)


def test_tokens_are_counted_of_the_rows_that_can_be_scored(asked: dict[str, Any], client: Client) -> None:
    items = [f"item {n}" for n in range(9)]
    table = pa.table({"review": [*items[:4], "long " * 20_000, *items[4:], None]})
    found = frames.cost(table, item_column="review", on_too_long="skip", empty="skip", **asked)
    assert found == frames.Cost(len(items), client.dry_run("Review: ", items, labels=LABELS).prompt_tokens)
    for left, place in (({"on_too_long": "skip"}, 10), ({"empty": "skip"}, 4)):
        with pytest.raises(TableError, match=f"row {place}: "):
            frames.cost(table, item_column="review", **left, **asked)


def test_the_help_of_a_function_explains_its_options() -> None:
    for function in (frames.score, frames.rerank):
        assert {"apply_softmax:", "baseline:", "on_too_long:"} <= set(
            (function.__doc__ or "").replace(",", ":").split()
        )
    assert "apply_softmax" not in (frames.decide.__doc__ or "")


def test_whoever_lacks_arrow_is_told_what_to_install() -> None:
    for module in ("frames", "duckdb", "ray", "spark"):
        program = f"import sys; sys.modules['pyarrow'] = None; import scoreline.{module}"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.stderr.splitlines()[-1].endswith('tables need pyarrow: pip install "scoreline[frames]"')
