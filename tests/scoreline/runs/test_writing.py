"""What was written after the last state that a journal knows is undone, and what it knows must be there."""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from scoreline.exit_codes import CommandError
from scoreline.runs.formats import Format, Kind
from scoreline.runs.journal import Journal
from scoreline.runs.reading import open_source
from scoreline.runs.writing import Sink, open_sink
from tests.scoreline.running import Up
from tests.scoreline.runs.files import execute, plan_of, write_csv

ROWS: list[dict[str, Any]] = [{"name": f"row {n}", "score": n / 8} for n in range(4)]


def opened(path: Path, file_format: Format) -> Sink:
    if file_format is Format.PARQUET:
        pytest.importorskip("pyarrow")
    return open_sink(str(path), file_format, ["name"], {"score": Kind.NUMBER}, None)


def rows_in(path: Path, file_format: Format) -> list[dict[str, Any]]:
    if file_format is Format.PARQUET:
        from pyarrow import parquet

        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return rows
    if file_format is Format.JSON_LINES:
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        read = csv.DictReader(file, delimiter="\t" if file_format is Format.TSV else ",")
        return [row | {"score": float(row["score"])} for row in read]


@pytest.mark.parametrize("file_format", list(Format))
def test_what_was_written_after_the_last_known_state_is_undone(tmp_path: Path, file_format: Format) -> None:
    path = tmp_path / "out"
    killed = opened(path, file_format)
    killed.resume(0)
    state = killed.write(ROWS[:2])
    killed.write(ROWS[2:3] * 5)  # more than what is written in its place
    assert not path.exists()
    resumed = opened(path, file_format)
    resumed.resume(state)
    resumed.write(ROWS[2:])
    resumed.complete()
    resumed.finish()
    assert rows_in(path, file_format) == ROWS
    assert [found.name for found in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("file_format", list(Format))
def test_rows_and_the_names_of_their_files_are_on_the_disk_before_they_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: Format
) -> None:
    stored: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        stored.append(str(Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(tmp_path)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    sink = opened(tmp_path / "out", file_format)
    sink.resume(0)
    sink.write(ROWS[:2])
    of_rows = ["out.parts/unfinished", "out.parts"] if file_format is Format.PARQUET else [".", "out.part"]
    assert stored == of_rows
    sink.complete()
    sink.finish()
    of_end = ["out.parts/unfinished", "."] if file_format is Format.PARQUET else ["out.part", "."]
    assert stored == of_rows + of_end


@pytest.mark.parametrize("file_format", [Format.CSV, Format.PARQUET])
def test_an_output_that_has_lost_rows_is_not_continued(tmp_path: Path, file_format: Format) -> None:
    with pytest.raises(CommandError, match="lost rows that were written: --restart"):
        opened(tmp_path / "out", file_format).resume(1_000)


def test_an_output_that_is_shorter_than_its_journal_says_is_not_continued(tmp_path: Path) -> None:
    sink = opened(tmp_path / "out", Format.CSV)
    sink.resume(0)
    state = sink.write(ROWS)
    with (tmp_path / "out.part").open("r+b") as file:
        file.truncate(state - 1)
    with pytest.raises(CommandError, match="lost rows that were written: --restart"):
        opened(tmp_path / "out", Format.CSV).resume(state)


@pytest.mark.parametrize("file_format", [Format.CSV, Format.PARQUET])
def test_an_output_in_a_folder_that_can_not_be_written_is_one_line(tmp_path: Path, file_format: Format) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="can't be written") as refused:
        opened(tmp_path / "file" / "out", file_format).resume(0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("file_format", [Format.CSV, Format.TSV])
def test_line_breaks_of_all_kinds_stand_within_a_value(tmp_path: Path, file_format: Format) -> None:
    rows = [{"name": name, "score": 0.5} for name in ("a\rb", "a\nb", "a\r\nb", "a\r", "a\r\n", "a")]
    sink = opened(tmp_path / "out", file_format)
    sink.resume(0)
    sink.write(rows)
    sink.complete()
    sink.finish()
    assert rows_in(tmp_path / "out", file_format) == rows
    assert (tmp_path / "out").read_bytes().endswith(b"0.5\n")
    assert open_source(str(tmp_path / "out"), file_format).columns == ["name", "score"]


def test_texts_that_are_not_unicode_are_escaped(tmp_path: Path) -> None:
    for file_format, expected in ((Format.JSON_LINES, b'"\\ud800\\u00e9"'), (Format.CSV, "\\ud800é".encode())):
        sink = opened(tmp_path / file_format, file_format)
        sink.resume(0)
        sink.write([{"name": "\ud800é", "score": None}])
        sink.complete()
        sink.finish()
        assert expected in (tmp_path / file_format).read_bytes()


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    sink = opened(tmp_path / "out", Format.JSON_LINES)
    sink.resume(0)
    sink.write([{"name": "é\ud800", "price": math.nan, "prices": [1.5, -math.inf]}, {"name": "é", "price": math.nan}])
    sink.complete()
    sink.finish()
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines == [r'{"name": "\u00e9\ud800", "price": null, "prices": [1.5, null]}', '{"name": "é", "price": null}']


def test_values_for_which_parquet_has_no_type_are_texts(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    names = ["object", "nested", "number", "list"]
    windows: list[dict[str, Any]] = [
        {"object": {}, "nested": [{}], "number": 2**53 + 1, "list": [2**53 + 1]},
        {"object": {"a": 1}, "nested": [], "number": 0.5, "list": [0.5]},
    ]
    sink = open_sink(str(tmp_path / "out"), Format.PARQUET, names, {}, None)
    sink.resume(0)
    for row in windows:
        sink.write([row])
    with pytest.raises(CommandError, match=r"out can't be written as Parquet: .*surrogates"):
        sink.write([{"object": "\ud800"}])
    sink.complete()
    sink.finish()
    found = rows_in(tmp_path / "out", Format.PARQUET)
    assert found == [{name: json.dumps(value) for name, value in row.items()} for row in windows]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", ["out.csv.part", "out.csv.errors.jsonl.part", "out.parquet.parts"])
def test_a_run_leaves_alone_what_no_journal_names(tmp_path: Path, name: str, restart: bool) -> None:
    pytest.importorskip("pyarrow")
    foreign = tmp_path / name / "00000000.parquet" if name.endswith("parts") else tmp_path / name
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text("not of a run")
    source = write_csv(tmp_path / "in.csv", [{"query": "a", "item": "b"}])
    plan = plan_of(source, tmp_path / ".".join(name.split(".")[:2]), restart=restart)
    with pytest.raises(CommandError, match="no journal of a run names it: move it away or remove it") as refused:
        execute(plan, "http://127.0.0.1:9")
    assert refused.value.exit_code == 2
    assert foreign.read_text() == "not of a run"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["in.csv", name])


def test_what_is_not_of_the_run_in_its_folder_of_segments_stays(tmp_path: Path) -> None:
    sink = opened(tmp_path / "out", Format.PARQUET)
    sink.resume(0)
    state = sink.write(ROWS[:2])
    (tmp_path / "out.parts" / "notes.txt").write_text("mine")
    sink = opened(tmp_path / "out", Format.PARQUET)
    sink.resume(state)
    sink.complete()
    sink.finish()
    assert [path.name for path in (tmp_path / "out.parts").iterdir()] == ["notes.txt"]
    assert rows_in(tmp_path / "out", Format.PARQUET) == ROWS[:2]


def test_a_finished_file_that_appeared_meanwhile_is_not_replaced(shared_up: Up, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", [{"query": "a", "item": "too long " * 600}])
    target = tmp_path / "out.csv"
    plan = plan_of(source, target)
    Journal(tmp_path / "out.csv.journal", plan.fingerprint(), plan.files).close()
    target.write_text("mine")
    with pytest.raises(CommandError, match="is there already: move it away"):
        execute(plan, shared_up.url)
    assert target.read_text() == "mine"


def test_cells_that_a_spreadsheet_would_compute_are_made_texts_and_numbers_stay(tmp_path: Path) -> None:
    cells = ["=cmd()", "+a", "-a", "@a", "\t=a", "-1.5", "+2", "a=b", "", None, 7]
    sink = open_sink(
        str(tmp_path / "out.csv"), Format.CSV, ["-name"], {"score": Kind.NUMBER}, None, escape_formulas=True
    )
    sink.resume(0)
    sink.write([{"-name": cell, "score": -1.0} for cell in cells])
    sink.complete()
    sink.finish()
    with (tmp_path / "out.csv").open(newline="") as file:
        heading, *rows = csv.reader(file)
    assert heading == ["'-name", "score"]
    expected = ["'=cmd()", "'+a", "'-a", "'@a", "'\t=a", "-1.5", "+2", "a=b", "", "", "7"]
    assert rows == [[cell, "-1.0"] for cell in expected]


def test_what_was_written_of_a_packed_file_can_be_undone(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.gz"
    killed = open_sink(str(path), Format.JSON_LINES, ["name"], {"score": Kind.NUMBER}, None)
    killed.resume(0)
    state = killed.write(ROWS[:2])
    killed.write(ROWS[:3])
    resumed = open_sink(str(path), Format.JSON_LINES, ["name"], {"score": Kind.NUMBER}, None)
    resumed.resume(state)
    resumed.write(ROWS[2:])
    resumed.complete()
    resumed.finish()
    assert [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()] == ROWS
