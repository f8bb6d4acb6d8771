"""How many bytes of something long are done, told now and then: a log takes no progress bars."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from typing import Any

REPORT_SECONDS = 1.0
"""The least time between two reports."""


class ByteProgress:
    """Passes on bytes done and bytes in all, as often as a reader wants to know.

    total: asked once, when the first bytes have come; None: what was announced so far counts, which may grow. report:
    told at most once in :data:`REPORT_SECONDS`, and at the end.
    """

    def __init__(
        self,
        total: Callable[[], int | None],
        report: Callable[[int, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask_total = total
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._total: int | None = None
        self._asked = False
        self._done = 0
        self._reported_at: float | None = None

    def advance(self, done: int, announced: int) -> None:
        """``done`` of the ``announced`` bytes are there. May be called from any thread, and out of order."""
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

    def bars(self) -> type[Any]:
        """A class of progress bars for the hub library, which are never drawn and tell this of the bytes they count."""
        from tqdm import tqdm

        progress = self

        class Bar(tqdm):  # type: ignore[misc]
            def __init__(self, *arguments: Any, **options: Any) -> None:
                # "leave" and the maximal interval would write at the end and start a thread of their own.
                super().__init__(*arguments, **options | {"file": io.StringIO(), "leave": False, "maxinterval": 0})

            def display(self, *_: Any, **__: Any) -> None:
                """Not drawn."""

            def update(self, n: float | None = 1) -> None:
                super().update(n)
                # Bytes are counted twice: received, where what is on disk already counts as nothing, and written.
                # The other bar counts files.
                if self.unit == "B" and n:
                    progress.advance(int(self.n), int(self.total or 0))

        return Bar
