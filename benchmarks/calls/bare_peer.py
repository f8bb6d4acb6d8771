"""FastAPI with the engine in the same process: what a first version would be. Nothing is queued, batched or stored."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from pydantic import BaseModel

from benchmarks.calls.scorer import Scorer


class Body(BaseModel):
    """A call."""

    query: str
    items: list[str]
    labels: list[str]


@asynccontextmanager
async def _engine(app: FastAPI) -> AsyncIterator[None]:
    app.state.scorer, app.state.lock = Scorer(), threading.Lock()
    yield


app = FastAPI(lifespan=_engine)


@app.post("/v1/score")
def score(body: Body, request: Request) -> dict[str, list[list[float]]]:
    """Score in a thread, one call after another."""
    with request.app.state.lock:
        return {"scores": request.app.state.scorer.score(body.query, body.items, body.labels)}
