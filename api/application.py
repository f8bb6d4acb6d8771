"""Build the application of one API process from its parts, its background tasks and its routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog
from anyio.to_thread import run_sync
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import Lifespan

from api.acceptance.acceptance import Acceptance
from api.acceptance.ringing import Ringer
from api.answers.error_responses import install_error_handlers
from api.answers.openapi import install_openapi
from api.background import background_tasks
from api.budget import Budget, PlaceForEachRequest
from api.callers.authentication import Authenticator, is_keyless, require_keys
from api.callers.rate_limiting import RateLimits
from api.drift import DriftCollector, ScoreCounts
from api.events.streams import Streams
from api.metrics import Metrics
from api.middleware.direct_routes import DirectRoutes
from api.middleware.lenient_requests import LenientRequests
from api.middleware.traced_requests import TracedRequests
from api.models.catalogue import Found
from api.models.loading import ModelLoader, open_models
from api.probes import Probes
from api.reading import ReadingContext
from api.request_id import RequestContext
from api.results import Results
from api.routes import (
    batch_events,
    batches,
    calls,
    events,
    files,
    job_items,
    job_sets,
    jobs,
    tokenize,
)
from api.routes import webhooks as webhook_routes
from api.routes.deployment import documentation, health, metrics, models, overview, page, receipts, start
from api.service import Callers, Service
from api.siblings import Siblings
from api.store import Store
from api.text_process.body_reader import BodyReader
from api.text_process.process import TextProcess
from api.threads import Threads
from api.waiting.ended_jobs import EndedJobs
from api.waiting.waiters import Waiters
from bell.opening import open_api_bell
from jobs.catalogue import list_models
from jobs.invariant_watch import Watch
from jobs.queue.worker_registry import live_workers
from jobs.store.database import Database
from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.errors.mistakes import SettingError, variable_of
from settings.keys import KeySettings
from settings.limits import LimitSettings
from settings.scoring import ScoringSettings
from settings.store import StoreSettings
from settings.telemetry import TelemetrySettings
from settings.webhooks import WebhookSettings
from telemetry.tracing import Tracer
from webhooks.addresses import AddressRules

ROUTERS = [
    module.router
    for module in (
        calls,
        job_sets,  # before jobs, where the last part of its path would be the id of one
        jobs,
        job_items,
        events,
        files,
        batches,
        batch_events,
        webhook_routes,
        models,
        receipts,
        overview,
        tokenize,
        health,
        start,
        page,
        metrics,
        documentation,
    )
]

if TYPE_CHECKING:
    from judgement.receipts import ReceiptKeys

log = structlog.stdlib.get_logger("api")


def create_app(
    *,
    api: ApiSettings,
    limits: LimitSettings,
    scoring: ScoringSettings,
    store: StoreSettings,
    bell: BellSettings,
    webhooks: WebhookSettings,
    keys: KeySettings,
    telemetry: TelemetrySettings | None = None,
    siblings: Siblings | None = None,
    tracer: Tracer | None = None,
) -> FastAPI:
    """Return the application. It starts without a database, a bell or a worker, and serves what it can without them.

    siblings: the processes that serve the same port, or None if this process serves alone. tracer: None for no traces.

    Raises CheckpointError if the model's tokenizer or configuration can't be fetched or read, ValueError for a URL of
    an unsupported database, NoKeysError if no request could be authenticated, TemplateError if the template that the
    settings name can't be used.
    """
    database = Database.open(store)

    def find_catalogue() -> Found:
        live = live_workers(database, store.worker_fresh_seconds)
        keys = frozenset((worker.card.name, worker.card.version) for worker in live)
        return Found(list_models(database, retired=True), keys)

    environment, models = open_models(scoring, find_catalogue, api.models_bytes)
    default = models.catalogue.default
    reading = ReadingContext(
        api=api,
        limits=limits,
        scoring=default.scoring,
        model=models.of(default, on_loop=False),
        models=models,
        webhook_rules=AddressRules.from_settings(webhooks),
        signs_receipts=keys.receipt_keys is not None,
    )
    receipt_keys = _receipt_keys(keys)
    keyless = is_keyless(api.host, bell.bell_socket)
    if keys.bootstrap_key is None and not keyless:
        require_keys(database)
    doorbell, listener = open_api_bell(bell, parent_serves=siblings is not None)
    watch = Watch(database)
    ended = EndedJobs()
    score_counts = ScoreCounts(database, reading.artefacts)
    budget = Budget(limits)
    named_tenants = 0 if telemetry is None else telemetry.metric_tenants
    process_metrics = Metrics(database, watch, store.worker_fresh_seconds, ended, budget, siblings, named_tenants)
    process_metrics.show(DriftCollector(score_counts))
    if bell.bell_socket is None:
        from bell.redis_bell import RedisBell

        assert isinstance(doorbell, RedisBell)
        doorbell.on_lost = process_metrics.counter_of_lost_rings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        threads = Threads(1 if siblings is None else siblings.count)
        in_threads = Store(database, threads)
        ringer = Ringer(doorbell)
        acceptance = Acceptance.make(in_threads, reading, ringer, process_metrics)
        streams = Streams.make(in_threads, api)
        loader = ModelLoader(models, environment, scoring, find_catalogue)
        service = Service(
            reading=reading,
            store=in_threads,
            threads=threads,
            bodies=BodyReader(reading, threads, TextProcess(reading, threads), loader),
            callers=Callers(
                Authenticator(database, threads, keys, limits, keyless=keyless),
                RateLimits(bell.redis_url if bell.bell_socket is None else None, bell.bell_prefix),
            ),
            acceptance=acceptance,
            waiters=Waiters(ended, streams.jobs.look_at),
            results=Results(in_threads, process_metrics, score_counts),
            streams=streams,
            metrics=process_metrics,
            probes=Probes.make(in_threads, acceptance, process_metrics, siblings),
            budget=budget,
            tracer=tracer,
            receipt_keys=receipt_keys,
            secret_overlap_seconds=webhooks.webhook_secret_overlap_seconds,
        )
        process_metrics.read_awaited_jobs_from(lambda: len(service.waiters.job_ids))
        app.state.service = service
        try:
            # The ringer ends before the listener, because its last rings may need the listener's socket.
            async with background_tasks(service, listener, watch):
                log.info(
                    "serving",
                    model=default.card.name,
                    context_length=default.card.context_length,
                    vocabulary=default.card.vocabulary,
                    template=reading.templates.default_name,
                )
                with ringer:
                    try:
                        yield
                    finally:
                        await service.acceptance.acceptor.close()
        finally:
            doorbell.close()
            database.close()
            if tracer is not None:
                await run_sync(tracer.close)

    app = with_routes(lifespan)
    app.state.is_stopping = False  # whether the server was told to stop, and is not ready any more
    app.state.is_closed = False  # whether it refuses every request
    # The middleware that is added last is the outermost.
    app.add_middleware(DirectRoutes, routes=app.state.routes)
    app.add_middleware(PlaceForEachRequest, budget=budget, count_refused=process_metrics.count_refused)
    app.add_middleware(LenientRequests)
    app.add_middleware(RequestContext, count_request=process_metrics.count_request)
    if tracer is not None:
        app.add_middleware(TracedRequests, tracer=tracer)
    install_error_handlers(app)
    return app


def with_routes(lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """Return an application with all routes and their document, but without the parts that serve requests."""
    app = FastAPI(
        title="Scoreline",
        version="1",
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    app.state.routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    app.state.document = None  # as JSON, once somebody has asked for it
    # Routers give their routes nothing of the application's. An included route would be built once more, by a request.
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    app.webhooks.include_router(webhook_routes.outgoing)
    install_openapi(app)
    return app


def _receipt_keys(keys: KeySettings) -> ReceiptKeys | None:
    if keys.receipt_keys is None:
        return None
    from judgement.receipts import ReceiptError, ReceiptKeys

    try:
        return ReceiptKeys.read(keys.receipt_keys.get_secret_value())
    except ReceiptError as error:
        raise SettingError(f"{variable_of('receipt_keys')} can't be used: {error}") from None
