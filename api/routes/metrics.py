"""What a monitoring system reads: see :mod:`api.metrics`."""

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
    # Not among the threads for SQL: when those are all waiting for a database is when this is read.
    return Response(await run_sync(service.metrics.text), headers={"Content-Type": CONTENT_TYPE_LATEST})
