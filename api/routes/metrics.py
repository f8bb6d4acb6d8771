"""Serve the metrics of :mod:`api.metrics` to a monitoring system."""

from __future__ import annotations

from anyio.to_thread import run_sync
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from api.service import ServiceOf

router = APIRouter(tags=["health"])


@router.get("/metrics", include_in_schema=False)
async def metrics(service: ServiceOf) -> Response:
    """Counters of this process and gauges of the queue. Answers also while the database is away."""
    # Not in the threads for SQL, because metrics are needed most when all of those wait for the database.
    return Response(await run_sync(service.metrics.text), headers={"Content-Type": CONTENT_TYPE_LATEST})
