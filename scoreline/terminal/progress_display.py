"""Show on the terminal how the embedded service starts and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from scoreline.terminal.log_lines import LogLine

PROGRESS_LOGGERS = ("worker", "scoring")
"""The loggers that report how far a worker has got until it is ready."""


class ProgressDisplay:
    """Shows progress as a spinner and a bar, or as plain lines if the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.shows: Callable[[LogLine], bool] = lambda line: False  # which log lines to print in full
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._activity = ""
        self._last_line = ""

    def begin(self, what: str) -> None:
        """Show that ``what`` is going on, until :meth:`end`."""
        self._activity = what
        if not self._console.is_terminal:
            self._print_once(what)
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
        """Stop showing what was going on."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None

    def on_log_line(self, role: str, line: LogLine) -> None:
        """Handle a line of a process's log. May be called from any thread.

        A line that can't be written is lost: a process whose log nobody reads any more would stand still.
        """
        with suppress(OSError, ValueError, SystemExit):  # rich raises the last one for a pipe that is closed
            self._handle(role, line)

    def _handle(self, role: str, line: LogLine) -> None:
        if self.shows(line):
            self.print_log(role, [line])
        elif role == "worker" and line.logger in PROGRESS_LOGGERS:
            # Only the worker's: the API reads the same model and would report the same again.
            if line.level == "warning":
                self.print_log(role, [line])
            elif not line.is_problem:
                self._show_progress(line)

    def print(self, text: str | Text = "") -> None:
        """Print text without breaking its lines, so that it can be copied."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def print_log(self, role: str, lines: Iterable[LogLine]) -> None:
        """Print lines of a process's log in full."""
        for line in lines:
            self._console.print(line.render(role), soft_wrap=True)

    def _show_progress(self, line: LogLine) -> None:
        """Show how far the worker has got."""
        done, total = line.progress or (None, None)
        progress, task = self._progress, self._task
        if progress is not None and task is not None:
            steps = f" {_steps(done or 0, total, line.counts_bytes)}" if total else ""
            progress.update(task, description=f"{self._activity}: {line.event}{steps}", completed=done, total=total)
        elif line.counts_bytes:
            # The total is left out: it may grow while the download goes on.
            self._print_once(line.event)
        elif total:
            self._print_once(f"{line.event} ({total} steps)")

    def _print_once(self, what: str) -> None:
        if what != self._last_line:
            self._last_line = what
            self.print(f"{what} ...")


def _steps(done: int, total: int, are_bytes: bool) -> str:
    return f"{decimal(done)} of {decimal(total)}" if are_bytes else f"{done}/{total}"
