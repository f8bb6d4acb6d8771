"""What docs/command.md shows of `scoreline run` is what a reader gets who saves its file and gives its command."""

from __future__ import annotations

import csv
import io
import re
import shlex
from pathlib import Path

import pytest

from tests.scoreline.running import ROOT, Up, scoreline

TOLERANCE = 0.01
"""How far a number may be off: formats of numbers differ between machines, and the page rounds."""

BLOCKS = re.findall(
    r"^```\n(.*?)^```", (ROOT / "docs" / "command.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@pytest.mark.slow
def test_the_first_example_gives_what_is_shown(demonstration: Up, tmp_path: Path) -> None:
    given, command, shown = BLOCKS[:3]
    words = shlex.split(command)
    assert words[:3] == ["scoreline", "run", "pairs.csv"]
    (tmp_path / "pairs.csv").write_text(given)
    paths = [str(tmp_path / word) if word in ("pairs.csv", "scores.csv") else word for word in words[1:]]
    done = scoreline(*paths, SCORELINE_URL=demonstration.url)
    assert done.returncode == 0, done.stderr
    heading, *rows = rows_of((tmp_path / "scores.csv").read_text())
    heading_shown, *rows_shown = rows_of(re.sub(r"\s+# rounded", "", shown))
    assert heading == heading_shown
    assert [row[:3] for row in rows] == [row[:3] for row in rows_shown] == rows_of(given)[1:]
    for row, row_shown in zip(rows, rows_shown, strict=True):
        assert [float(cell) for cell in row[3:]] == pytest.approx(
            [float(cell) for cell in row_shown[3:]], abs=TOLERANCE
        )
