"""Report the progress of a download from time to time, since a log can show no progress bar."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from typing import Any

REPORT_SECONDS = 1.0  # least time between two reports


class ByteProgress:
    """Reports how many bytes are done, and how many there are in all."""

    def __init__(
        self,
        total: Callable[[], int | None],
        report: Callable[[int, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """total: called once, after the first bytes; None: the announced bytes count, which may grow. report: called
        with bytes done and bytes in all, at most once in :data:`REPORT_SECONDS`, and at the end.
        """
        self._ask_total = total
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._total: int | None = None
        self._asked = False
        self._done = 0
        self._reported_at: float | None = None

    def advance(self, done: int, announced: int) -> None:
        """Note that ``done`` of the ``announced`` bytes are done. May be called from any thread, and out of order."""
        with self._lock:
            if done <= self._done:
                return
            if not self._asked:
                self._asked, self._total = True, self._ask_total()
            self._done = done
            total = max(done, announced if self._total is None else self._total)
            now = self._clock()
            due = self._reported_at is None or now - self._reported_at >= REPORT_SECONDS
            if due or done == total:
                self._reported_at = now
                self._report(done, total)

    def bar_class(self) -> type[Any]:
        """Return a class of progress bars for the hub library. They are never drawn, but report their bytes here."""
        from tqdm import tqdm

        progress = self

        class Bar(tqdm):  # type: ignore[misc]
            def __init__(self, *arguments: Any, **options: Any) -> None:
                # "leave" would make it write at the end, and "maxinterval" would start a thread.
                super().__init__(*arguments, **options | {"file": io.StringIO(), "leave": False, "maxinterval": 0})

            def display(self, *_: Any, **__: Any) -> None:
                """Draw nothing."""

            def update(self, n: float | None = 1) -> None:
                super().update(n)
                # There is a bar for bytes received, which ignores those already on disk, and one for bytes written.
                # A third one counts files.
                if self.unit == "B" and n:
                    progress.advance(int(self.n), int(self.total or 0))

        return Bar
