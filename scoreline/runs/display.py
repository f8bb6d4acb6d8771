"""Show how far a run has got: as a bar on a terminal, and else as a line from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

LINE_SECONDS = 10.0
"""How often a line is printed where there is no terminal."""


@dataclass(slots=True)
class Progressed:
    """How far a run has got."""

    rows_before: int = 0  # that an earlier process has written
    rows: int = 0  # that are scored, those before included
    rows_read: int = 0
    share_read: float | None = None  # of the input; None if nobody knows
    prompt_tokens: int = 0
    shared_tokens: int = 0  # those of them that did not have to be computed
    waits: str = ""  # what it waits for, if it does

    @property
    def total(self) -> int | None:
        """Return how many rows there are, as far as that can be told."""
        if self.share_read is None or self.share_read <= 0:
            return None
        return max(self.rows_read, round(self.rows_read / self.share_read))

    def text(self, seconds: float) -> str:
        """Return it in words. seconds: that this process has run."""
        total, is_exact = self.total, self.share_read is not None and self.share_read >= 1
        about = "" if is_exact else "about "
        words = [f"{self.rows:,} rows" if total is None else f"{self.rows:,} of {about}{total:,} rows"]
        rate = (self.rows - self.rows_before) / seconds if seconds > 0 else 0.0
        if rate > 0:
            words.append(speed(rate))
        if self.prompt_tokens:
            words.append(f"{share(self.shared_tokens, self.prompt_tokens)} of tokens shared")
        if rate > 0 and total is not None:
            words.append(f"{duration((total - self.rows) / rate)} left")
        if self.waits:
            words.append(self.waits)
        return ", ".join(words)


def speed(rate: float) -> str:
    """Return how many rows there are in a second."""
    return f"{rate:,.0f} rows/s" if rate >= 10 else f"{rate:.1f} rows/s"


def share(part: int, whole: int) -> str:
    """Return a share in per cent."""
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def duration(seconds: float) -> str:
    """Return a time, such as ``1:02:03`` or ``0:07``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def label_mass_text(shares: Sequence[float]) -> str:
    """Return the tenth, the half and the nine tenths of the rows with the least label mass in words."""
    tenth, half, most = (f"{share:.2g}" for share in shares)
    return f"Label mass: at most {tenth} in 10 % of the rows, at most {half} in half of them, at most {most} in 90 %."


class RunDisplay:
    """What a run shows while it goes on. Use it as a context manager."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._began = self._last_line = clock()
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (BarColumn(bar_width=30), TextColumn("{task.description}", markup=False))
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("reading", total=None)

    def __enter__(self) -> RunDisplay:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def seconds(self) -> float:
        """How long this process has run."""
        return self._clock() - self._began

    def show(self, progressed: Progressed) -> None:
        """Show how far the run has got now."""
        if self._bar is not None:
            text, total = progressed.text(self.seconds), progressed.total
            self._bar.update(self._task, description=text, completed=progressed.rows, total=total)
        elif self._clock() - self._last_line >= LINE_SECONDS:
            self._last_line = self._clock()
            self.print(progressed.text(self.seconds))

    def print(self, line: str) -> None:
        """Print a line for good."""
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)
