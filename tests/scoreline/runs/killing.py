"""Kill a run at each statement by which it writes something, and see that the same command finishes it.

This is a program, because a run that is to be killed is forked from a process with one thread.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow  # noqa: F401  # so that no forked process has to import it

from scoreline.runs import beginning, journal, parquet, storing, writing
from scoreline.runs.plan import Plan, Remedy
from scoreline.runs.prompts import Columns
from tests.scoreline.runs.files import LABELS, execute, plan_of, write_lines

WATCHED = frozenset(module.__file__ for module in (beginning, journal, parquet, storing, writing))

ROWS = [{"id": n, "query": "a", "item": f" b{n}" if n == 2 else n} for n in range(6)]
"""All but one of them are skipped, so that a run takes little time."""


def kill_at(statement: int) -> None:
    """Have this process be killed when so many statements of the watched modules were executed."""
    left = statement

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)


def forked(work: Callable[[], Any]) -> int:
    """Return how a forked process ends that does some work: 0, the number of the signal, or 1 for an error."""
    process = os.fork()
    if process == 0:
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def main(folder: Path, url: str, ending: str, step: int) -> None:
    """Kill at every ``step``th statement, first a new run and then one that replaces a finished one."""
    whole, tried = folder / "whole", folder / "tried"

    def plan(place: Path, *, restart: bool = False) -> Plan:
        source, target = place / "in.jsonl", place / f"out.{ending}"
        columns = Columns("query", "item")
        return plan_of(source, target, rows=3, columns=columns, labels=LABELS, on_error=Remedy.SKIP, restart=restart)

    whole.mkdir()
    write_lines(whole / "in.jsonl", ROWS)
    assert forked(lambda: execute(plan(whole), url)) == 0
    expected = contents(whole)
    assert len(expected) == 3, expected.keys()
    for restart in (False, True):
        statement, killed = 1, 0
        while True:
            shutil.rmtree(tried, ignore_errors=True)
            tried.mkdir()
            write_lines(tried / "in.jsonl", ROWS)
            if restart:
                (tried / f"out.{ending}").write_text("finished")
                (tried / f"out.{ending}.errors.jsonl").write_text("finished")

            def attempt(at: int = statement, restart: bool = restart) -> None:
                kill_at(at)
                execute(plan(tried, restart=restart), url)

            ended = forked(attempt)
            if ended == 0:
                break
            assert ended == signal.SIGKILL, f"statement {statement}: {ended}"
            killed += 1
            if contents(tried) != expected:
                finished = forked(lambda restart=restart: execute(plan(tried, restart=restart), url))  # type: ignore[misc]
                assert finished == 0, f"after a kill at statement {statement}"
            found = contents(tried)
            assert found == expected, (statement, [name for name in found if found[name] != expected.get(name)])
            assert len(list(tried.iterdir())) == len(expected), f"statement {statement} leaves something over"
            statement += step
        print(f"killed {killed} times")
        assert killed > 100 / step


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
