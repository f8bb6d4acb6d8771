"""The application of one API process: its parts, its background tasks and its routes, put together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

import structlog
from fastapi import FastAPI
from fastapi.routing import APIRoute

from api.answers.error_responses import install_error_handlers
from api.answers.openapi import install_openapi
from api.callers.admission import Admission
from api.callers.authentication import Authenticator, is_keyless, require_keys
from api.callers.compatibility import Handshake
from api.callers.rate_limiting import RateLimits
from api.metrics import Metrics
from api.request_id import RequestContext
from api.ringing import Ringer
from api.routes import health, jobs, metrics, models, score, tokenize
from api.routes import webhooks as webhook_routes
from api.service import Service
from api.threads import Threads
from api.waiting import Waiters
from bell.interfaces import Bell, Notices
from bell.local import LocalHub
from bell.redis_bell import RedisBell
from bell.redis_ended_jobs import RedisNotices
from checkpoints.files import read_model_card
from checkpoints.source import Contents, find_checkpoint
from jobs.invariant_watch import Watch
from jobs.queue.read import statuses
from jobs.queue.sweep import sweep
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import JobStatus, Swept
from jobs.tenancy.keys import USED_SECONDS
from scoring.tokenization import TextTokenizer
from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.jobs import StoreSettings
from settings.keys import KeySettings
from settings.scoring import ScoringSettings
from settings.webhooks import WebhookSettings
from webhooks.addresses import AddressRules

ROUTERS = (
    score.router,
    jobs.router,
    webhook_routes.router,
    models.router,
    tokenize.router,
    health.router,
    metrics.router,
)

RESTART_SECONDS = 1.0
"""The pause after which a background task that failed is started again."""

log = structlog.stdlib.get_logger("api")


def create_app(
    *,
    api: ApiSettings,
    scoring: ScoringSettings,
    store: StoreSettings,
    bell: BellSettings,
    webhooks: WebhookSettings,
    keys: KeySettings,
    sweep_seconds: float,
    secret_overlap_seconds: float,
) -> FastAPI:
    """The application. It starts without a database, a bell or a worker, and serves what it can without them.

    sweep_seconds: how often this process looks for expired leases and deadlines, as every other process does;
    secret_overlap_seconds: see :class:`api.service.Service`.

    Raises ModelFilesError if the model's tokenizer or configuration can't be had or read, ValueError for a database
    URL that names no supported store, NoKeysError if nobody could call it.
    """
    checkpoint = find_checkpoint(scoring.model, scoring.model_revision, Contents.DESCRIPTION)
    tokenizer = TextTokenizer.load(checkpoint.directory)
    card = read_model_card(
        checkpoint.directory,
        checkpoint.name if scoring.model_name is None else scoring.model_name,
        scoring.multi_item_scoring_delimiter,
        tokenizer,
        scoring.context_length,
    )
    database = Database.open(store)
    keyless = is_keyless(api.host, bell.bell_socket)
    if keys.bootstrap_key is None and not keyless:
        require_keys(database)
    doorbell, notices = _open_bell(bell)
    watch = Watch(database)
    rings_lost = (lambda: doorbell.failures) if isinstance(doorbell, RedisBell) else None
    counted = Metrics(database, watch, api.worker_fresh_seconds, rings_lost)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        ringer = Ringer(doorbell)
        handshake = Handshake(database, card, api.worker_fresh_seconds)
        admission = Admission(database, card, handshake, api)
        threads = Threads()
        callers = (
            Authenticator(database, threads, keys, keyless=keyless),
            RateLimits(bell.redis_url if bell.bell_socket is None else None, bell.bell_prefix),
        )
        known = api, scoring, database, tokenizer, card, handshake
        calling = AddressRules.of(webhooks), secret_overlap_seconds
        service = Service(*known, *callers, admission, counted, threads, Waiters(), ringer, *calling)
        counted.awaited_by(lambda: len(service.waiters.job_ids))
        app.state.service = service
        tasks = [
            asyncio.create_task(_keep_running(name, start))
            for name, start in {
                "notices": lambda: notices.listen(service.waiters.on_ended),
                "polling": lambda: _poll(service),
                "sweeping": lambda: _sweep(service, watch, sweep_seconds),
                "noting the use of keys": lambda: _note_use(service),
            }.items()
        ]
        log.info("serving", model=card.name, context_length=card.context_length, vocabulary=card.vocabulary)
        try:
            with ringer:
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            doorbell.close()
            database.close()

    app = FastAPI(title="Scoreline", version="1", lifespan=lifespan, redirect_slashes=False, redoc_url=None)
    app.state.routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    for router in ROUTERS:
        app.include_router(router)
    app.webhooks.include_router(webhook_routes.outgoing)
    app.add_middleware(RequestContext, answered=counted.answered)
    install_error_handlers(app)
    install_openapi(app)
    return app


def _open_bell(settings: BellSettings) -> tuple[Bell, Notices]:
    if settings.bell_socket is not None:
        hub = LocalHub(settings.bell_socket)
        return hub, hub
    return RedisBell(settings.redis_url, settings.bell_prefix), RedisNotices(settings.redis_url, settings.bell_prefix)


async def _keep_running(name: str, start: Callable[[], Awaitable[None]]) -> None:
    """Run a background task for as long as the process lives: without them, requests wait for nothing."""
    while True:
        try:
            await start()
        except Exception:
            log.exception("a background task failed and is started again", task=name)
        await asyncio.sleep(RESTART_SECONDS)


async def _poll(service: Service) -> None:
    async def look_up(job_ids: Collection[str]) -> dict[str, JobStatus]:
        return await service.threads.sql(statuses, service.database, job_ids)

    await service.waiters.poll(look_up, service.api.waiter_poll_seconds)


async def _note_use(service: Service) -> None:
    while True:
        await asyncio.sleep(USED_SECONDS * random.uniform(0.75, 1.0))
        await service.authenticator.write_use()


async def _sweep(service: Service, watch: Watch, every_seconds: float) -> None:
    """Sweep now and then, and tell whom it concerns. Any process may, so that none has to be the one."""
    while True:
        # Jitter keeps processes that started together from sweeping together.
        await asyncio.sleep(every_seconds * random.uniform(0.75, 1.25))
        try:
            swept = await service.threads.sql(sweep, service.database)
        except StorageUnavailable as error:
            log.warning("could not sweep", error=str(error))
            continue
        for job_id in swept.job_ids:
            service.waiters.on_ended(job_id)
        service.ringer.announce(swept.job_ids)
        for model in swept.models:
            service.ringer.ring(model)
        try:
            await service.threads.sql(_after_sweep, service, watch, swept)
        except StorageUnavailable as error:
            log.warning("could not look at what was swept", error=str(error))


def _after_sweep(service: Service, watch: Watch, swept: Swept) -> None:
    """Count what ended, and look for what must not be: nobody waits for this."""
    for job_id, status in statuses(service.database, swept.job_ids).items():
        service.metrics.saw(job_id, status)
    watch.after_sweep()
