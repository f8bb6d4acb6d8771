"""Remove files and batches whose time is over, in the background of an API process. Several processes may do so."""

from __future__ import annotations

import asyncio

import structlog

from api.service import Service
from jobs.file_batches.reading import FILE_IN_USE
from jobs.file_batches.removal import sweep_batches
from jobs.files.removal import sweep_files
from jobs.store.database import Database, StorageUnavailable

log = structlog.stdlib.get_logger("api.batches")


async def keep_sweeping(service: Service) -> None:
    """Sweep regularly until cancelled. It is a task of its own, because a large file takes long to remove."""
    may_be_more = False
    while True:
        if not may_be_more:
            await asyncio.sleep(service.database.settings.sweep_seconds)
        try:
            may_be_more = await service.threads.sql(_sweep, service.database)
        except StorageUnavailable as error:
            log.warning("could not remove files", error=str(error))
            may_be_more = False


def _sweep(db: Database) -> bool:
    sweep_batches(db)
    return sweep_files(db, FILE_IN_USE)
