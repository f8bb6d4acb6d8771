"""The background tasks of an API process: notices, polling, sweeping, and recording when keys were used."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress

import structlog

from api.batches.sweeping import keep_sweeping
from api.batches.work import BatchWork
from api.callers.authentication import Authenticator
from api.drift import ADD_SECONDS
from api.server.heap import keep_giving_back
from api.service import Service
from api.store import Store
from bell.interfaces import EndedJobsListener, tell
from jobs.invariant_watch import Watch
from jobs.outages import LATER_SCHEMA
from jobs.queue.read import statuses
from jobs.queue.sweep import AGAIN_SECONDS, sweep
from jobs.store.database import StorageUnavailable
from jobs.store.records import JobStatus, Swept
from jobs.tenancy.keys import LAST_USED_RESOLUTION_SECONDS

RESTART_SECONDS = 1.0
"""The pause before a background task that failed is started again."""

CANCEL_AGAIN_SECONDS = 1.0
"""How long a cancelled background task may take to end before it is cancelled once more."""

log = structlog.stdlib.get_logger("api")


LOOK_SECONDS = 2.0
"""The pause before a process that has just started looks again for its database."""


@asynccontextmanager
async def background_tasks(service: Service, listener: EndedJobsListener, watch: Watch) -> AsyncIterator[None]:
    """Run all background tasks while the context is entered."""

    async def look_up(job_ids: Collection[str]) -> dict[str, JobStatus]:
        return await service.threads.sql(statuses, service.store.database, job_ids)

    tasks = [
        asyncio.create_task(_keep_running(name, start), name=name)
        for name, start in {
            "notices": lambda: listener.listen(service.waiters.on_ended),
            "polling": lambda: service.waiters.poll(look_up, service.reading.api.waiter_poll_seconds),
            "following jobs": service.streams.jobs.keep,
            "following batches": service.streams.batches.keep,
            "sweeping": lambda: _sweep(service, watch),
            "following the catalogue": service.bodies.loader.follow,
            "reading long bodies": service.bodies.process.keep,
            "working on batches": BatchWork(service).run,
            "sweeping files": lambda: keep_sweeping(service.store),
            "noting the use of keys": lambda: _record_key_use(service.callers.authenticator),
            "adding counts of scores": lambda: _add_counts(service),
            "looking at the database": lambda: _look_at_database(service.store),
            "giving memory back": keep_giving_back,
        }.items()
    ]
    try:
        yield
    finally:
        await _end(tasks)
        with suppress(StorageUnavailable):
            await service.threads.sql(service.results.counts.add)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks until all of them have ended. A library may swallow a cancellation, or raise an error instead."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)
        for task in left:
            log.warning("a background task does not end and is cancelled again", task=task.get_name())


async def _keep_running(name: str, start: Callable[[], Awaitable[None]]) -> None:
    """Run a task until cancelled, and restart it after a failure: requests depend on it."""
    while True:
        try:
            await start()
        except Exception:
            log.exception("a background task failed and is started again", task=name)
        await asyncio.sleep(RESTART_SECONDS)


async def _look_at_database(store: Store) -> None:
    """Have the log say what keeps the database from being used when the process starts, and when it can be used."""
    while True:
        with suppress(StorageUnavailable):
            if await store.threads.sql(store.database.check_use):
                log.warning(LATER_SCHEMA)
            break
        await asyncio.sleep(LOOK_SECONDS)
    await asyncio.Event().wait()  # for the end of the process


async def _record_key_use(authenticator: Authenticator) -> None:
    while True:
        await asyncio.sleep(LAST_USED_RESOLUTION_SECONDS * random.uniform(0.75, 1.0))
        await authenticator.record_use()


async def _add_counts(service: Service) -> None:
    while True:
        await asyncio.sleep(ADD_SECONDS * random.uniform(0.75, 1.25))
        with suppress(StorageUnavailable):
            await service.threads.sql(service.results.counts.add)


async def _sweep(service: Service, watch: Watch) -> None:
    """Sweep regularly, as every API process and worker does, and announce what has changed."""
    more = False
    while True:
        # The jitter keeps processes that started together from sweeping at the same time.
        pause = service.store.database.settings.sweep_seconds * random.uniform(0.75, 1.25)
        await asyncio.sleep(AGAIN_SECONDS if more else pause)
        more = False
        try:
            swept = await service.threads.sql(sweep, service.store.database)
        except StorageUnavailable:
            continue
        more = swept.more
        for job_id in swept.job_ids:
            service.waiters.on_ended(job_id)
        tell(service.acceptance.ringer, swept.models, swept.job_ids)
        with suppress(StorageUnavailable):
            await service.threads.sql(_count_and_watch, service, watch, swept)


def _count_and_watch(service: Service, watch: Watch, swept: Swept) -> None:
    """Count the jobs that ended, and check the invariants once no job is past its deadline."""
    for job_id, status in statuses(service.store.database, swept.job_ids).items():
        service.metrics.count_ended(job_id, status)
    if not swept.more:
        watch.after_sweep()
