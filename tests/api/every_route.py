"""A valid request for every operation of the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx2
from pydantic import BaseModel

from api.answers.decisions.schemas import DecisionsResponse, SystemOneResponse
from api.answers.items.result_schemas import LikelihoodResponse, ScoreResponse
from api.answers.schemas.batch import Batch, BatchList, DeletedBatch
from api.answers.schemas.completion import CompletionResponse
from api.answers.schemas.file import DeletedFile, File, FileList
from api.answers.schemas.jobs import (
    DeletedJob,
    Delivery,
    DeliveryList,
    Job,
    JobList,
    JobSet,
    ScoreList,
    Tokens,
    WebhookSecretList,
)
from api.answers.schemas.reranking import EitherRanking, RerankResponse
from api.answers.schemas.server import Health, JobItems, Model, ModelList, Overview, PublishedKeys, Readiness, Start
from api.requests.reranking import RERANK, TEXTS_PATH
from jobs.tenancy.keys import Scope
from tests.api.serving import RunningApi, eventually

BODY: dict[str, Any] = {
    "query": "The capital of",
    "items": [" France is", ""],
    "label_token_ids": [70, 71],
    "return_logprobs": True,
    "return_logits": True,
}

WEBHOOK_BODY = BODY | {"webhook": {"url": "https://hooks.example.com/", "events": ["job.succeeded", "job.failed"]}}
"""The body of a job with a webhook. Its delivery is never sent, because no delivery process runs."""


BATCH: dict[str, Any] = {
    "endpoint": "/v1/score",
    "completion_window": "24h",
    "webhook": {"url": "https://hooks.example.com/"},
}
"""The body of a batch without its file."""

LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/score", "body": {"query": "a", "items": [], "labels": ["a"]}}'

LIKELIHOOD = {"query": "The capital of", "items": [" France is", ""], "return_tokens": True}

DECISION = {"state": "What is in England?", "questions": {"town": {"type": "noul", "instructions": "Is it London?"}}}
DECISION_OF_OPENAI = {"input": "What is in England?", "questions": [{"type": "predicate", "instructions": "Is it?"}]}
COMPLETION = {"prompt": ["Paris", " is"], "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}

RANKING = {"query": "The capital of France", "documents": ["Paris", {"text": "London"}]}


@dataclass(frozen=True)
class Operation:
    """A route with a valid request for it."""

    method: str
    path: str
    status: int  # of the response
    shape: type[BaseModel] | None  # of the response; None if it is not JSON
    body: dict[str, Any] | None = None
    scope: Scope | None = Scope.READ  # None if the route needs no key
    parameters: str = ""  # what follows the path

    @property
    def needs_job(self) -> bool:
        """Whether its path names a job, which then has to be there."""
        return "{job_id}" in self.path + self.parameters


OPERATIONS = [
    Operation("post", "/v1/score", 200, ScoreResponse, BODY, Scope.SCORE),
    Operation("post", "/v1/likelihood", 200, LikelihoodResponse, LIKELIHOOD, Scope.SCORE),
    Operation("post", "/v1/systemone", 200, SystemOneResponse, DECISION, Scope.SCORE),
    Operation("post", "/v1/decisions", 200, DecisionsResponse, DECISION_OF_OPENAI, Scope.SCORE),
    Operation("post", "/v1/completions", 200, CompletionResponse, COMPLETION, Scope.SCORE),
    *(
        Operation("post", path, 200, EitherRanking if path == TEXTS_PATH else RerankResponse, RANKING, Scope.SCORE)
        for path in RERANK
    ),
    Operation("post", "/v1/jobs", 202, Job, BODY | {"metadata": {"run": "7"}}, Scope.SCORE),
    Operation("get", "/v1/jobs", 200, JobList),
    Operation("post", "/v1/jobs/sets", 202, JobSet, {"jobs": [BODY, BODY | {"query": ""}]}, Scope.SCORE),
    Operation("get", "/v1/jobs/sets", 200, JobSet, parameters="?ids={job_id}"),
    Operation("get", "/v1/jobs/{job_id}", 200, Job),
    Operation("get", "/v1/jobs/{job_id}/scores", 200, ScoreList),
    Operation("get", "/v1/jobs/{job_id}/items", 200, JobItems),
    Operation("get", "/v1/jobs/{job_id}/events", 200, None),
    Operation("post", "/v1/jobs/{job_id}/cancel", 200, Job, scope=Scope.SCORE),
    Operation("get", "/v1/jobs/{job_id}/deliveries", 200, DeliveryList),
    Operation("post", "/v1/jobs/{job_id}/deliveries/{delivery_id}/redeliver", 202, Delivery, scope=Scope.WEBHOOKS),
    Operation("delete", "/v1/jobs/{job_id}", 200, DeletedJob, scope=Scope.SCORE),
    Operation("post", "/v1/files", 200, File, scope=Scope.SCORE),
    Operation("get", "/v1/files", 200, FileList),
    Operation("get", "/v1/files/{file_id}", 200, File),
    Operation("get", "/v1/files/{file_id}/content", 200, None),
    Operation("delete", "/v1/files/{file_id}", 200, DeletedFile, scope=Scope.SCORE),
    Operation("post", "/v1/batches", 200, Batch, scope=Scope.SCORE),
    Operation("get", "/v1/batches", 200, BatchList),
    Operation("get", "/v1/batches/{batch_id}", 200, Batch),
    Operation("get", "/v1/batches/{batch_id}/events", 200, None),
    Operation("post", "/v1/batches/{batch_id}/cancel", 200, Batch, scope=Scope.SCORE),
    Operation("delete", "/v1/batches/{batch_id}", 200, DeletedBatch, scope=Scope.SCORE),
    Operation("get", "/v1/batches/{batch_id}/deliveries", 200, DeliveryList),
    Operation("post", "/v1/batches/{batch_id}/deliveries/{delivery_id}/redeliver", 202, Delivery, scope=Scope.WEBHOOKS),
    Operation("get", "/v1/webhook-secrets", 200, WebhookSecretList, scope=Scope.WEBHOOKS),
    Operation("post", "/v1/webhook-secrets/rotate", 200, WebhookSecretList, scope=Scope.WEBHOOKS),
    Operation("get", "/v1/models", 200, ModelList),
    Operation("get", "/v1/models/{model_id}", 200, Model),
    Operation("get", "/v1/overview", 200, Overview),
    Operation("post", "/v1/tokenize", 200, Tokens, {"text": " Paris"}, Scope.SCORE),
    Operation("get", "/.well-known/jwks.json", 200, PublishedKeys, scope=None),
    Operation("get", "/livez", 200, Health, scope=None),
    Operation("get", "/readyz", 200, Readiness, scope=None),
    Operation("get", "/health", 200, Readiness, scope=None),
    Operation("get", "/metrics", 200, None, scope=None),
    Operation("get", "/", 200, Start, scope=None),
]


def request(
    api: RunningApi,
    operation: Operation,
    job_id: str,
    client: httpx2.Client | None = None,
    delivery_id: str | None = None,
    owner: httpx2.Client | None = None,
) -> httpx2.Response:
    """Send the request of an operation, for this job or its delivery if the path names one.

    client: the client to use instead of the server's own. delivery_id: the delivery, which is otherwise looked up.
    owner: the client that makes the file or the batch that the request is about, by default the server's own.
    """
    owner, client = owner or api.client, client or api.client
    file_id = batch_id = ""
    body = operation.body
    if operation.path == "/v1/files" and operation.method == "post":
        return upload(client)
    if "{file_id}" in operation.path or operation.path == "/v1/batches":
        file_id = made(upload(owner))
    if operation.path == "/v1/batches" and operation.method == "post":
        body = BATCH | {"input_file_id": file_id}
    if "{batch_id}" in operation.path:
        batch_id = made(owner.post("/v1/batches", json=BATCH | {"input_file_id": made(upload(owner, b""))}))
        if "{delivery_id}" in operation.path:
            delivery_id = delivery_of_batch(owner, batch_id)
    if "{delivery_id}" in operation.path and delivery_id is None:
        delivery_id = delivery_of(api.client, job_id)
    ids = {"job_id": job_id, "delivery_id": delivery_id, "file_id": file_id, "batch_id": batch_id, "model_id": "tiny"}
    path = (operation.path + operation.parameters).format(**ids)
    return client.request(operation.method, path, json=body)


def job_for(api: RunningApi, operation: Operation) -> str:
    """Return the id of a job that has ended, for an operation that is about one; otherwise an empty text."""
    return str(api.wait(api.submit(**WEBHOOK_BODY)["id"])["id"]) if operation.needs_job else ""


def upload(client: httpx2.Client, content: bytes = LINE) -> httpx2.Response:
    """Upload a file for a batch."""
    return client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", content)})


def made(response: httpx2.Response) -> str:
    """Return the id of what a request has made."""
    assert response.status_code == 200, response.text
    return str(response.json()["id"])


def delivery_of_batch(client: httpx2.Client, batch_id: str) -> str:
    """Return the id of the only delivery of a batch, once it has ended."""
    path = f"/v1/batches/{batch_id}/deliveries"
    eventually(lambda: client.get(path).json()["data"], "the batch ends")
    return str(client.get(path).json()["data"][0]["id"])


def delivery_of(client: httpx2.Client, job_id: str) -> str:
    """Return the id of the only delivery of a job."""
    (delivery,) = client.get(f"/v1/jobs/{job_id}/deliveries").json()["data"]
    return str(delivery["id"])
