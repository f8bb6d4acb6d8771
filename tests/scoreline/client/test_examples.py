"""The examples run against the demonstration model, and print numbers that make sense."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.scoreline.running import ROOT, Up

FIGURES: dict[str, list[str]] = {
    "reranking": [r"after: mean reciprocal rank (\S+), nDCG (\S+)", r"(\d) of 5 questions have an answer at the top"],
    "classification": [
        r"(\d+) of 11 reviews are classified as a reader would",
        r"1100 reviews, (\d+) of them positive",
    ],
    "multiple_choice": [r"(\d+) of 8 answers are right", r"P\(4\) = (\S+);"],
    "polars_reviews": [r"(\d+) of 600 reviews are classified as a reader would", r"^(\d+) items"],
}
LEAST: dict[str, list[float]] = {
    "reranking": [0.9, 0.9, 4],
    "classification": [11, 550],
    "multiple_choice": [8, 0.5],
    "polars_reviews": [540, 600],
}
"""The figures of each example, and what they are at least."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_an_example_prints_figures_that_make_sense(demonstration: Up, name: str) -> None:
    run = subprocess.run(
        [sys.executable, f"examples/{name}.py"],
        cwd=ROOT,
        env=os.environ | {"SCORELINE_URL": demonstration.url, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = [re.search(figure, run.stdout, re.MULTILINE) for figure in FIGURES[name]]
    figures = [float(figure) for one in found for figure in (one.groups() if one else ["nan"])]
    assert all(figure >= least for figure, least in zip(figures, LEAST[name], strict=True)), run.stdout


BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "client.md").read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.slow
def test_the_page_of_the_client_runs_from_its_beginning_to_its_end(
    demonstration: Up, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCORELINE_URL", demonstration.url)
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/client.md", "exec"), names)
    printed = capsys.readouterr().out
    for shown in ("succeeded", "hotel [True, False]", "cafe [False]", "500 of 500"):
        assert shown in printed
    names["client"].close()  # type: ignore[attr-defined]
