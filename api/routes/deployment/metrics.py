"""Serve the metrics of :mod:`api.metrics` to a monitoring system."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from api.answers.error_responses import documented
from api.service import ProbesOf

router = APIRouter(tags=["health"])

EXAMPLE = """\
# HELP scoreline_http_requests_total Requests that were answered.
# TYPE scoreline_http_requests_total counter
scoreline_http_requests_total{method="POST",route="/v1/score",status="200"} 12.0
"""


_TEXT = {"text/plain": {"schema": {"type": "string"}, "example": EXAMPLE}}


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"description": "the metrics in Prometheus' text format", "content": _TEXT}, **documented()},
)
async def metrics(probes: ProbesOf) -> Response:
    """Metrics for Prometheus: counters of this process and gauges of the queue.

    They are there also while the database is away. docs/observability.md lists them.
    """
    return Response(await probes.metrics_text.result(), headers={"Content-Type": CONTENT_TYPE_LATEST})
