"""FastAPI in front of Celery, as its users write it: a task for each call, and the result in Redis.

Nothing is stored in a database, and nothing is batched. ``app`` is the Celery worker's, ``api`` the server's.
"""

from __future__ import annotations

import asyncio
import os

from celery import Celery
from celery.signals import worker_init
from fastapi import FastAPI
from pydantic import BaseModel

REDIS_VARIABLE = "CALLS_REDIS_URL"
RESULT_SECONDS = 60.0

app = Celery("calls", broker=os.environ.get(REDIS_VARIABLE), backend=os.environ.get(REDIS_VARIABLE))
api = FastAPI()


class Body(BaseModel):
    """A call."""

    query: str
    items: list[str]
    labels: list[str]


@worker_init.connect  # type: ignore[untyped-decorator]
def load(**_: object) -> None:
    """Load the engine before the worker takes tasks. The server, which imports this module too, has none."""
    from benchmarks.calls.scorer import Scorer

    app.scorer = Scorer()


@app.task(name="score")  # type: ignore[untyped-decorator]
def score_task(query: str, items: list[str], labels: list[str]) -> list[list[float]]:
    """Score one call."""
    scores: list[list[float]] = app.scorer.score(query, items, labels)
    return scores


@api.post("/v1/score")
async def score(body: Body) -> dict[str, list[list[float]]]:
    """Send the task and wait for its result, in a thread: this was faster than a plain function, and than polling."""
    return {"scores": await asyncio.to_thread(_scored, body)}


def _scored(body: Body) -> list[list[float]]:
    scores: list[list[float]] = score_task.delay(body.query, body.items, body.labels).get(timeout=RESULT_SECONDS)
    return scores
