"""Who follows the tutorial, or the page about decisions, word by word gets what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.scoreline.running import ROOT, Up

PAGES = ("tutorial", "decisions")
ELSEWHERE = {
    "make demo": "tests/scoreline/commands/test_demo.py runs it",
    "source .venv/bin/activate": "the tests run in the environment",
    "scoreline up": "a fixture runs it, at a free port",
    "scoreline up --model Qwen/Qwen3-0.6B": "this needs the internet",
}
"""What the test does not run itself, and why."""

TOLERANCE = 0.01
_BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n```(?P<language>\w*)\n(?P<text>.*?)\n```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"`(?P<name>[\w.-]+)`")


@dataclass(frozen=True, slots=True)
class Step:
    """Commands that are typed together, and the output that is shown after them."""

    commands: str
    shown: str


def files_and_steps(text: str) -> tuple[dict[str, str], list[Step]]:
    """Return the files that the reader is asked to save, and the steps."""
    files: dict[str, str] = {}
    steps: list[Step] = []
    for block in _BLOCK.finditer(text):
        match block["language"]:
            case "bash":
                steps.append(Step(block["text"], ""))
            case "" if block["text"].startswith(("curl ", '"answers"')):
                pass  # tests/scoreline/test_readme.py compares it
            case "":
                steps[-1] = Step(steps[-1].commands, block["text"])
            case _:
                name = _FILE.search(block["before"])
                assert name is not None, f"no name stands above {block['text']}"
                files[name["name"]] = block["text"] + "\n"
    return files, steps


def of_page(name: str) -> tuple[dict[str, str], list[Step]]:
    return files_and_steps((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"))


def words(line: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", line) if word]


def number(word: str) -> float | None:
    return float(word) if re.fullmatch(r"\d+\.\d+(e-\d+)?", word) else None


def alike(shown: str, printed: str) -> bool:
    """Whether a line has the words that are shown, and about the same numbers."""
    pairs = list(zip(words(shown), words(printed), strict=False))
    return len(words(shown)) == len(words(printed)) and all(
        abs(one - other) <= TOLERANCE
        if (one := number(left)) is not None and (other := number(right)) is not None
        else left == right
        for left, right in pairs
    )


def test_lines_are_alike_if_their_words_are_and_their_numbers_nearly() -> None:
    assert alike("a, b  0.856", "a,b,0.8555938013906751")
    assert not alike("a 0.856", "a 0.9")
    assert not alike("a b", "a")
    assert alike("0.000", "5.6e-05")


def test_the_tutorial_has_what_a_newcomer_needs() -> None:
    files, steps = of_page("tutorial")
    assert set(files) == {"questions.csv", "first.py", "reviews.csv"}
    commands = "\n".join(step.commands for step in steps)
    for command in (*ELSEWHERE, "scoreline score", "scoreline run", "python first.py"):
        assert command in commands
    assert sum(bool(step.shown) for step in steps) == 5


def test_the_page_about_decisions_routes_tickets_by_a_program_and_in_a_file() -> None:
    files, steps = of_page("decisions")
    assert set(files) == {"route.py", "tickets.csv", "questions.json"}
    assert [step.commands.split()[:2] for step in steps if step.shown] == [["python", "route.py"], ["scoreline", "run"]]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_gives_what_it_shows(page: str, demonstration: Up, tmp_path: Path) -> None:
    files, steps = of_page(page)
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    variables = {
        "SCORELINE_URL": demonstration.url,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    for step in steps:
        commands = "\n".join(line for line in step.commands.splitlines() if line not in ELSEWHERE)
        if not commands:
            continue
        run = subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=tmp_path,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, f"{commands}\n{run.stderr}"
        printed = (run.stdout + run.stderr).splitlines()
        for line in step.shown.splitlines():
            assert any(alike(line, one) for one in printed), f"{line}\nis not in\n{run.stdout}{run.stderr}"
    for scored, lines in {"reviews-scored.csv": 3, "routed.csv": 4}.items():
        written = tmp_path / scored
        assert not written.exists() or written.read_text(encoding="utf-8").count("\n") == lines
    assert set(files) < {path.name for path in tmp_path.iterdir()}, "the commands have written a file"
