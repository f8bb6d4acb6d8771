"""A scoring worker as a process, whose engine makes its scores up: ``python -m tests.workers.made_up_worker MODE``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence

from jobs.records import WorkerRecord
from scoring.layout import GroupWork, Scored
from settings.bell import BellSettings
from settings.engine import EngineSettings
from settings.logs import configure_logs
from settings.store import StoreSettings
from tests.workers.conftest import CARD
from tests.workers.engines import MadeUpEngine
from workers.presence import new_worker_id
from workers.serving import Stopping, WorkerSettings, end_process, serve


class HangingEngine(MadeUpEngine):
    """Never comes back, as a device call may."""

    def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[Scored]:
        while True:
            time.sleep(3600)
        yield


class SlowEngine(MadeUpEngine):
    """Takes a moment for every chunk."""

    def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[Scored]:
        def slowly() -> None:
            time.sleep(0.05)
            on_step()

        return super().score(groups, slowly)


class BrokenEngine(MadeUpEngine):
    """Fails at anything."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True


ENGINES = {"broken": BrokenEngine, "quick": MadeUpEngine, "slow": SlowEngine, "hang": HangingEngine}


def main() -> int:
    configure_logs()
    stopping = Stopping()
    if sys.argv[1] == "loading":
        time.sleep(3600)
    worker = WorkerRecord(new_worker_id(), CARD, "weights", "none", "float32")
    settings = WorkerSettings(StoreSettings(), BellSettings(), EngineSettings())
    return serve(ENGINES[sys.argv[1]](), worker, settings, stopping)


if __name__ == "__main__":
    end_process(main())
