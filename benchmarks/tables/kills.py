"""What happens while an engine scores: its memory is watched, and processes are killed."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from benchmarks.batches.__main__ import Service
from benchmarks.upload import memory_mb
from tests.services import stat_of

TASK = "task"
KILLS = (
    *((0.03, TASK), (0.1, "api"), (0.15, TASK), (0.2, TASK), (0.25, "worker"), (0.3, TASK), (0.4, TASK)),
    *((0.5, TASK), (0.6, TASK), (0.7, TASK)),
)
"""After which share of the rows is scored, and what is killed then."""

LEAST_TASKS_KILLED = 5
LOOK_SECONDS = 0.1
LOOKS_FOR_MEMORY = 5
"""Memory is looked at once in so many looks."""


def descendants() -> dict[int, str]:
    """Return the command lines of the processes that this one has started, and those that these have, by their ids."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = stat_of(int(path.name))[:2]
            if state != "Z":
                parents[int(path.name)] = int(parent)
    found: dict[int, str] = {}
    for process_id in parents:
        ancestor = process_id
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid() != process_id:
            with suppress(OSError):
                found[process_id] = Path(f"/proc/{process_id}/cmdline").read_text().replace("\0", " ").strip()
    return found


def parent_of(process_id: int) -> int:
    """Return the process that has started another one; 0 if it is gone."""
    with suppress(OSError):
        return int(stat_of(process_id)[1])
    return 0


class Meddler(threading.Thread):
    """A thread that watches the processes of an engine, and kills some of them if that is wanted."""

    def __init__(
        self,
        kinds: Mapping[str, re.Pattern[str]],
        service: Service,
        share: Callable[[], float],
        *,
        kills: bool,
        away_seconds: float,
    ) -> None:
        """kinds: how the command lines of the engine's processes begin. share: returns how much is scored.

        away_seconds: for how long the API, or the worker, stays away after its kill.
        """
        super().__init__(daemon=True)
        self._kinds, self._service, self._share = kinds, service, share
        self._left = list(KILLS) if kills else []
        self._away_seconds = away_seconds
        self._stopped = threading.Event()
        self._chance = random.Random(0)
        self.made: dict[str, int] = {}
        self.peak_mb: dict[str, int] = {}

    def run(self) -> None:
        """Watch and kill until stopped."""
        looks = 0
        while not self._stopped.wait(LOOK_SECONDS):
            if looks % LOOKS_FOR_MEMORY == 0:
                self._watch()
            looks += 1
            if self._left and self._share() >= self._left[0][0] and self._kill(self._left[0][1]):
                name = self._left.pop(0)[1]
                self.made[name] = self.made.get(name, 0) + 1

    def stop(self) -> None:
        """Stop, and wait for the thread."""
        self._stopped.set()
        self.join()

    def _of(self, kind: str) -> list[int]:
        matching = [one for one, command in descendants().items() if self._kinds[kind].search(command)]
        # A process that has its tasks in children with the same command line does none itself.
        parents = {parent_of(one) for one in matching}
        return [one for one in matching if one not in parents]

    def _watch(self) -> None:
        for kind in self._kinds:
            for process_id in self._of(kind):
                with suppress(OSError, ValueError):
                    self.peak_mb[kind] = max(self.peak_mb.get(kind, 0), memory_mb(process_id, "VmHWM"))

    def _kill(self, name: str) -> bool:
        """Return whether there was something to kill."""
        if name != TASK:
            self._service.kill(name, self._away_seconds)
            return True
        for process_id in self._chance.sample(found := self._of(TASK), len(found)):
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
                print(f"the process {process_id} with tasks is killed", file=sys.stderr)
                return True
        return False
