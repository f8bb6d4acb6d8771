"""Remove files and batches whose time is over, in the background of an API process. Several processes may do so."""

from __future__ import annotations

import asyncio

import structlog

from api.store import Store
from jobs.file_batches.reading import FILE_IN_USE
from jobs.file_batches.removal import shorten_retention as shorten_retention_of_batches
from jobs.file_batches.removal import sweep_batches
from jobs.files.removal import sweep_files
from jobs.queue.ending import shorten_retention
from jobs.store.database import Database, StorageUnavailable

log = structlog.stdlib.get_logger("api.batches")


async def keep_sweeping(store: Store) -> None:
    """Sweep regularly until cancelled. It is a task of its own, because a large file takes long to remove.

    Retention can have become shorter since the last start. So the first sweep shortens it for what has ended, too.
    """
    may_be_more, is_first = False, True
    while True:
        if not may_be_more:
            await asyncio.sleep(store.database.settings.sweep_seconds)
        try:
            if is_first:
                await store.threads.sql(_shorten_retention, store.database)
                is_first = False
            may_be_more = await store.threads.sql(_sweep, store.database)
        except StorageUnavailable:
            may_be_more = False


def _sweep(db: Database) -> bool:
    sweep_batches(db)
    return sweep_files(db, FILE_IN_USE)


def _shorten_retention(db: Database) -> None:
    jobs = shorten_retention(db)
    batches, files = shorten_retention_of_batches(db)
    if jobs or batches or files:
        log.info("retention is shorter now: what has ended goes sooner", jobs=jobs, batches=batches, files=files)
