"""A valid request for every operation of the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx2
from pydantic import BaseModel

from api.answers.reranking_schemas import RerankResponse
from api.answers.schemas import (
    DeletedJob,
    Delivery,
    DeliveryList,
    Health,
    Job,
    JobList,
    Model,
    ModelList,
    Readiness,
    ScoreList,
    ScoreResponse,
    Start,
    Tokens,
    WebhookSecretList,
)
from api.routes.rerank import PATHS
from jobs.tenancy.keys import Scope
from tests.api.serving import RunningApi

BODY: dict[str, Any] = {
    "query": "The capital of",
    "items": [" France is", ""],
    "label_token_ids": [70, 71],
    "return_logprobs": True,
    "return_logits": True,
}

WEBHOOK_BODY = BODY | {"webhook": {"url": "https://hooks.example.com/", "events": ["job.succeeded", "job.failed"]}}
"""The body of a job with a webhook. Its delivery is never sent, because no delivery process runs."""


RANKING = {"query": "The capital of France", "documents": ["Paris", {"text": "London"}]}


@dataclass(frozen=True)
class Operation:
    """A route with a valid request for it."""

    method: str
    path: str
    status: int  # of the response
    shape: type[BaseModel]  # of the response
    body: dict[str, Any] | None = None
    scope: Scope | None = Scope.READ  # None if the route needs no key


OPERATIONS = [
    Operation("post", "/v1/score", 200, ScoreResponse, BODY, Scope.SCORE),
    *(Operation("post", path, 200, RerankResponse, RANKING, Scope.SCORE) for path in PATHS),
    Operation("post", "/v1/jobs", 202, Job, BODY | {"metadata": {"run": "7"}}, Scope.SCORE),
    Operation("get", "/v1/jobs", 200, JobList),
    Operation("get", "/v1/jobs/{job_id}", 200, Job),
    Operation("get", "/v1/jobs/{job_id}/scores", 200, ScoreList),
    Operation("post", "/v1/jobs/{job_id}/cancel", 200, Job, scope=Scope.SCORE),
    Operation("get", "/v1/jobs/{job_id}/deliveries", 200, DeliveryList),
    Operation("post", "/v1/jobs/{job_id}/deliveries/{delivery_id}/redeliver", 202, Delivery, scope=Scope.WEBHOOKS),
    Operation("delete", "/v1/jobs/{job_id}", 200, DeletedJob, scope=Scope.SCORE),
    Operation("get", "/v1/webhook-secrets", 200, WebhookSecretList, scope=Scope.WEBHOOKS),
    Operation("post", "/v1/webhook-secrets/rotate", 200, WebhookSecretList, scope=Scope.WEBHOOKS),
    Operation("get", "/v1/models", 200, ModelList),
    Operation("get", "/v1/models/{model_id}", 200, Model),
    Operation("post", "/v1/tokenize", 200, Tokens, {"text": " Paris"}, Scope.SCORE),
    Operation("get", "/livez", 200, Health, scope=None),
    Operation("get", "/readyz", 200, Readiness, scope=None),
    Operation("get", "/health", 200, Readiness, scope=None),
    Operation("get", "/", 200, Start, scope=None),
]


def request(
    api: RunningApi,
    operation: Operation,
    job_id: str,
    client: httpx2.Client | None = None,
    delivery_id: str | None = None,
) -> httpx2.Response:
    """Send the request of an operation, for this job or its delivery if the path names one.

    client: the client to use instead of the server's own. delivery_id: the delivery, which is otherwise looked up.
    """
    if "{delivery_id}" in operation.path and delivery_id is None:
        delivery_id = delivery_of(api.client, job_id)
    path = operation.path.format(job_id=job_id, delivery_id=delivery_id, model_id="tiny")
    return (client or api.client).request(operation.method, path, json=operation.body)


def delivery_of(client: httpx2.Client, job_id: str) -> str:
    """Return the id of the only delivery of a job."""
    (delivery,) = client.get(f"/v1/jobs/{job_id}/deliveries").json()["data"]
    return str(delivery["id"])
