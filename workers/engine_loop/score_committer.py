"""Committing scores beside the scoring, so that the device never waits for the database.

What is scored while a commit is under way goes into the next one: many small jobs share a commit, and a single one
waits for nobody.
"""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType

import structlog

from bell.interfaces import Bell
from jobs.queue.finish import finish
from jobs.store.database import Database, StorageUnavailable
from scoring.layout import Scored
from workers.engine_loop.lease_renewal import Lease

RETRY_SECONDS = 0.5

log = structlog.stdlib.get_logger("worker")


class Finishing:
    """Finishes the chunks of one batch, in a thread, and announces the jobs that end with them.

    Through an outage of the database it tries again for as long as the lease lasts, or until ``stopping``: what is not
    committed then is scored again by someone.

    gave_up: something was not committed; failed: for another reason than an outage or a lost lease.
    """

    def __init__(self, database: Database, bell: Bell, batch_id: str, lease: Lease, stopping: threading.Event) -> None:
        self._database = database
        self._bell = bell
        self._batch_id = batch_id
        self._lease = lease
        self._stopping = stopping
        self._scored: list[Scored] = []
        self._changed = threading.Condition()
        self._complete = False
        self._thread = threading.Thread(target=self._run, name="finishing", daemon=True)
        self.failed = False
        self.gave_up = False

    def __enter__(self) -> Finishing:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Return once all that was put is committed, or given up."""
        with self._changed:
            self._complete = True
            self._changed.notify()
        self._thread.join()

    def put(self, scored: Scored) -> None:
        """Have a chunk finished soon."""
        with self._changed:
            self._scored.append(scored)
            self._changed.notify()

    def _run(self) -> None:
        try:
            while scored := self._take():
                self._commit(scored)
        except Exception:
            self.failed = True
            log.exception("could not store scores", batch_id=self._batch_id)

    def _take(self) -> list[Scored]:
        """All that was put since; empty once there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._scored or self._complete)
            taken, self._scored = self._scored, []
        return taken

    def _commit(self, scored: list[Scored]) -> None:
        while not self._lease.over:
            try:
                finished = finish(self._database, self._batch_id, scored)
            except StorageUnavailable as error:
                log.warning("could not store scores yet", chunks=len(scored), error=str(error))
                if self._stopping.wait(RETRY_SECONDS):
                    break
                continue
            if finished.job_ids:
                self._bell.announce(finished.job_ids)
            if finished.fenced:
                # Of jobs that were cancelled meanwhile, or of a batch that is lost: a renewal tells.
                log.info("scores came too late", chunks=finished.fenced, batch_id=self._batch_id)
                with contextlib.suppress(StorageUnavailable):
                    self._lease.renew()
            return
        self.gave_up = True
        log.warning("scores were given up", chunks=len(scored), batch_id=self._batch_id)
