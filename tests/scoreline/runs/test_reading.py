"""A line that can't be read is a row without values, and what follows it is read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from scoreline.exit_codes import CommandError
from scoreline.runs import reading
from scoreline.runs.formats import Format, Unreadable
from scoreline.runs.reading import open_source


def read(path: Path, file_format: Format, content: bytes) -> list[tuple[int, Any]]:
    """Return the rows by their numbers: their values, or why they can't be read."""
    path.write_bytes(content)
    source = open_source(str(path), file_format)
    found = [
        (number, row.reason if isinstance(row, Unreadable) else list(row.values())) for number, row in iter(source)
    ]
    source.close()
    return found


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([b"a,b", b"a", b"c,d"], [(2, ["a", "b"]), (3, "it has 1 values"), (4, ["c", "d"])]),
        ([b"\xff,b", b"c,d"], [(2, "it is not UTF-8"), (3, ["c", "d"])]),
        ([b'a,"b', b'\xff"', b"c,d"], [(3, "it is not UTF-8"), (4, ["c", "d"])]),
        ([b'"a" b,c', b"c,d"], [(2, "a value goes on behind the quote"), (3, ["c", "d"])]),
        # A quote that nothing ends costs its own line and no other.
        ([b'a,"b', b"c,d", b"e,f"], [(2, "a value begins with a quote"), (3, ["c", "d"]), (4, ["e", "f"])]),
        ([b'a,"b', b"c,d", b'"e",f'], [(2, "a value goes on behind the quote"), (3, ["c", "d"]), (4, ["e", "f"])]),
        ([b"a,b", b"x" * 50, b"c,d"], [(2, ["a", "b"]), (3, "it is longer than 0 MiB"), (4, ["c", "d"])]),
        ([b'a,"b', *[b"c,d"] * 5, b'"'], [(2, "a value is longer than 64 MiB"), *((n, ["c", "d"]) for n in range(3, 8)),
                                          (8, "a value begins with a quote")]),
        ([b"", b'"a', b'b",c', b"c,d"], [(3, ["a\nb", "c"]), (5, ["c", "d"])]),
    ],
)  # fmt: skip
def test_what_follows_a_line_of_csv_that_can_not_be_read_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[bytes], expected: list[tuple[int, Any]]
) -> None:
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 20)
    limit = csv.field_size_limit()
    found = read(tmp_path / "in.csv", Format.CSV, b"query,item\n" + b"\n".join(lines) + b"\n")
    csv.field_size_limit(limit)
    assert [number for number, _ in found] == [number for number, _ in expected]
    for (_, row), (_, wanted) in zip(found, expected, strict=True):
        assert row == wanted or (isinstance(row, str) and row.startswith(wanted)), row


def test_what_follows_a_line_of_json_that_can_not_be_read_is_read(tmp_path: Path) -> None:
    lines = [b'{"a": 1}', b'{"a": ', b"[1]", b"\xff", b"", b'{"a": 2}']
    found = read(tmp_path / "in.jsonl", Format.JSON_LINES, b"\n".join(lines))
    assert [number for number, _ in found] == [1, 2, 3, 4, 6]
    assert [row for _, row in found if isinstance(row, list)] == [[1], [2]]
    assert [row[:24] for _, row in found if isinstance(row, str)] == [
        "it is not JSON: Expectin",
        "it is not a JSON object,",
        "it is not UTF-8",
    ]


@pytest.mark.parametrize(
    ("kind", "value", "names", "message"),
    [
        ("date32", (10**7).to_bytes(4, "little"), ["query", "day"], "from row 0 on, a value can't be read: date"),
        ("string", b"\xff", ["query", "day"], "from row 0 on, a value can't be read: 'utf-8'"),
        ("string", b"a", ["day", "day"], "has several columns 'day'"),
    ],
)
def test_parquet_that_can_not_be_read_is_one_line(
    tmp_path: Path, kind: str, value: bytes, names: list[str], message: str
) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    fixed = arrow.binary(len(value)) if kind == "date32" else arrow.binary()
    column = arrow.array([value], fixed).view(kind)
    parquet.write_table(arrow.Table.from_arrays([arrow.array(["a"]), column], names), tmp_path / "in.parquet")
    with pytest.raises(CommandError, match=message) as refused:
        list(open_source(str(tmp_path / "in.parquet"), Format.PARQUET))
    assert refused.value.exit_code == 4


def test_a_change_of_what_can_not_be_read_is_told(tmp_path: Path) -> None:
    """So a run that has skipped such a row does not go on as if the repaired row had been skipped."""
    contents = set()
    for line in (b"\xff", b"\xfe", b'{"a"', b'{"b"'):
        (tmp_path / "in.jsonl").write_bytes(line + b"\n")
        ((_, row),) = open_source(str(tmp_path / "in.jsonl"), Format.JSON_LINES)
        assert isinstance(row, Unreadable)
        contents.add(row.content)
    assert len(contents) == 4
