"""The part that one of several processes has in what they share when they serve a port together."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

from api.callers.request_counts import CountElsewhere
from api.siblings.table import USES, SharedTable, SharedUse
from api.turns import TurnTaking

HEARTBEAT_SECONDS = 1.0

NOT_READY_SECONDS = 5.0
"""After such a silence of one process all say that they are not ready: connections that it gets are not answered."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """This process among its siblings."""

    number: int  # of this process, from 0
    count: int  # of all of them
    folder: Path  # where the processes keep what they share
    count_requests: CountElsewhere
    turns: TurnTaking  # at reading long bodies
    table: SharedTable = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", open_table(self.folder, self.count))
        self.table.set_process_id(self.number, os.getpid())

    def uses(self) -> list[SharedUse]:
        """Return where the budget's kinds of use are counted."""
        return [SharedUse(self.table, self.number, kind) for kind in range(USES)]

    def share(self, limit: int) -> int:
        """Return this process's part of a limit that can't be counted together, rounded up."""
        return -(-limit // self.count)

    def set_awaited_jobs(self, jobs: int) -> None:
        """Say how many jobs the requests of this process wait for."""
        self.table.set_awaited_jobs(self.number, jobs)

    async def keep_heartbeat(self) -> None:
        """Show the parent and the siblings that the event loop takes its turns, until this is cancelled."""
        while True:
            self.table.set_heartbeat(self.number)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def silent(self) -> list[int]:
        """Return the processes that have been silent for so long that the port is not to get requests."""
        return self.table.silent_rows(NOT_READY_SECONDS)


def open_table(folder: Path, processes: int) -> SharedTable:
    """Open the table of the processes whose folder this is."""
    return SharedTable(folder / "table", processes)


def counters_folder(folder: Path) -> Path:
    """Return where the counters of all processes are kept. A process goes on with those of the one before it."""
    return folder / "counters"
