"""One good request for every operation of the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx2
from pydantic import BaseModel

from api.schemas import (
    DeletedJob,
    Health,
    Job,
    JobList,
    ModelList,
    Readiness,
    ScoreList,
    ScoreResponse,
    Tokens,
)
from jobs.keys import Scope
from tests.api.serving import RunningApi

BODY: dict[str, Any] = {
    "query": "The capital of",
    "items": [" France is", ""],
    "label_token_ids": [70, 71],
    "return_logprobs": True,
    "return_logits": True,
}


@dataclass(frozen=True)
class Operation:
    """A route, a request it is to answer well, the shape of its answer, and the scope it takes; None: it is open."""

    method: str
    path: str
    status: int
    shape: type[BaseModel]
    body: dict[str, Any] | None = None
    scope: Scope | None = Scope.READ


OPERATIONS = [
    Operation("post", "/v1/score", 200, ScoreResponse, BODY, Scope.SCORE),
    Operation("post", "/v1/jobs", 202, Job, BODY | {"metadata": {"run": "7"}}, Scope.SCORE),
    Operation("get", "/v1/jobs", 200, JobList),
    Operation("get", "/v1/jobs/{job_id}", 200, Job),
    Operation("get", "/v1/jobs/{job_id}/scores", 200, ScoreList),
    Operation("post", "/v1/jobs/{job_id}/cancel", 200, Job, scope=Scope.SCORE),
    Operation("delete", "/v1/jobs/{job_id}", 200, DeletedJob, scope=Scope.SCORE),
    Operation("get", "/v1/models", 200, ModelList),
    Operation("post", "/v1/tokenize", 200, Tokens, {"text": " Paris"}, Scope.SCORE),
    Operation("get", "/livez", 200, Health, scope=None),
    Operation("get", "/readyz", 200, Readiness, scope=None),
]


def request(api: RunningApi, operation: Operation, job_id: str, client: httpx2.Client | None = None) -> httpx2.Response:
    """Send an operation's request, about this job where it is about one. client: other than the server's own."""
    path = operation.path.format(job_id=job_id)
    return (client or api.client).request(operation.method, path, json=operation.body)
