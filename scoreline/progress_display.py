"""What a person at the terminal sees while the embedded service starts and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from scoreline.log_lines import LogLine

PROGRESS_LOGGERS = ("worker", "scoring")
"""Who tells how far a worker is until it is ready."""


class Narrator:
    """Shows what goes on as a spinner, or, where there is no terminal, as a line.

    shows: which of the lines that the processes log; at first, none. :meth:`line` may be called from any thread.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self.shows: Callable[[LogLine], bool] = lambda line: False
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""
        self._said = ""

    def begin(self, what: str) -> None:
        """Say what goes on from now on, until :meth:`end`."""
        self._what = what
        if not self._console.is_terminal:
            self._say_once(what)
            return
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task(what, total=None)
        self._progress.start()

    def end(self) -> None:
        """What went on is over."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None

    def line(self, role: str, line: LogLine) -> None:
        """Show what a process logged."""
        if self.shows(line):
            self.show(role, [line])
        elif role == "worker" and line.logger in PROGRESS_LOGGERS:
            # The API reads the same model and would say the same again.
            if line.level == "warning":
                self.show(role, [line])
            elif not line.is_trouble:
                self._tell(line)

    def say(self, text: str | Text = "") -> None:
        """A line of our own, never broken, so that it can be copied."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def show(self, role: str, lines: Iterable[LogLine]) -> None:
        """Show what a process logged, all of it."""
        for line in lines:
            self._console.print(line.render(role), soft_wrap=True)

    def _tell(self, line: LogLine) -> None:
        """Tell how far the worker is."""
        done, total = line.progress or (None, None)
        progress, task = self._progress, self._task
        if progress is not None and task is not None:
            steps = f" {_steps(done or 0, total, line.counts_bytes)}" if total else ""
            progress.update(task, description=f"{self._what}: {line.event}{steps}", completed=done, total=total)
        elif line.counts_bytes:
            # How much there is may only become known bit by bit.
            self._say_once(line.event)
        elif total:
            self._say_once(f"{line.event} ({total} steps)")

    def _say_once(self, what: str) -> None:
        if what != self._said:
            self._said = what
            self.say(f"{what} ...")


def _steps(done: int, total: int, are_bytes: bool) -> str:
    return f"{decimal(done)} of {decimal(total)}" if are_bytes else f"{done}/{total}"
