"""The same work as plain Celery tasks with results in Redis: what :mod:`benchmarks.queue` compares with."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("plain", broker=os.environ.get("PLAIN_CELERY_URL"), backend=os.environ.get("PLAIN_CELERY_URL"))
app.conf.update(task_serializer="json", result_serializer="json", accept_content=["json"], task_acks_late=True)
app.conf.task_default_queue = "benchmark-plain"


@app.task(name="score")  # type: ignore[untyped-decorator]
def score(query: list[int], items: list[list[int]], labels: list[int]) -> list[list[float]]:
    """Every logit is zero."""
    return [[0.0] * len(labels) for _ in items]
