"""Show what was sent to the webhook of a job or a batch, and show and rotate the secrets that sign webhooks."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.presentation import json_response, show_delivery, show_secrets
from api.answers.schemas.batch import BatchEnd
from api.answers.schemas.jobs import Delivery, DeliveryList, JobEvent, WebhookSecretList
from api.principal import WithReadScope, WithWebhookScope
from api.requests.ids import checked_batch_id, checked_job_id
from api.service import ServiceOf, StoreOf
from jobs.file_batches.reading import find_batch
from jobs.webhooks.delivery_log import list_deliveries, redeliver
from jobs.webhooks.secrets import live_secrets, rotate_secret
from scoring.error_codes import ErrorCode
from webhooks.signing import new_secret

DELIVERY_ID = r"msg_[0-9a-f]{32}"

NO_STORE = {"Cache-Control": "no-store"}
"""The headers of a response that contains secrets."""

router = APIRouter(tags=["webhooks"])
outgoing = APIRouter(tags=["webhooks"])
"""The requests that the service sends; only for the OpenAPI document."""


@outgoing.post("job.ended", status_code=204, response_description="taken: any 2xx; everything else is tried again")
def _job_ended(
    event: JobEvent,
    webhook_id: Annotated[str, Header(description="the event's, the same in every attempt")],
    webhook_timestamp: Annotated[int, Header(description="of this attempt, in Unix seconds")],
    webhook_signature: Annotated[str, Header(description="as Standard Webhooks has it; one for each live secret")],
) -> None:
    """A job that asked for it has come to its end."""


@outgoing.post("batch.ended", status_code=204, response_description="taken: any 2xx; everything else is tried again")
def _batch_ended(
    event: BatchEnd,
    webhook_id: Annotated[str, Header(description="the event's, the same in every attempt")],
    webhook_timestamp: Annotated[int, Header(description="of this attempt, in Unix seconds")],
    webhook_signature: Annotated[str, Header(description="as Standard Webhooks has it; one for each live secret")],
) -> None:
    """A batch that asked for it has come to its end."""


@router.get("/v1/jobs/{job_id}/deliveries", response_model=DeliveryList, responses=secured(ErrorCode.JOB_NOT_FOUND))
async def deliveries(job_id: str, store: StoreOf, principal: WithReadScope) -> Response:
    """List what was, or is to be, sent to a job's webhook, with every attempt. There is one delivery once the job has
    ended, and none before, or if the webhook did not ask for that end.
    """
    found = await store.of(principal.tenant, list_deliveries, checked_job_id(job_id))
    return json_response({"object": "list", "data": [show_delivery(delivery) for delivery in found]})


@router.post(
    "/v1/jobs/{job_id}/deliveries/{delivery_id}/redeliver",
    status_code=202,
    response_model=Delivery,
    responses=secured(ErrorCode.JOB_NOT_FOUND, ErrorCode.NOT_FOUND),
)
async def redeliver_(job_id: str, delivery_id: str, store: StoreOf, principal: WithWebhookScope) -> Response:
    """Send a delivery again, now, under the same id and whatever became of it. If that fails, the schedule of attempts
    begins anew; to an endpoint that is disabled it is sent once, and a success enables the endpoint. One that is being
    sent at this moment is left alone.
    """
    job_id = checked_job_id(job_id)
    # An invalid id belongs to no delivery and is not sent to the database. A missing job is reported first, however.
    delivery_id = delivery_id if re.fullmatch(DELIVERY_ID, delivery_id) else ""
    redelivered = await store.of(principal.tenant, redeliver, job_id, delivery_id)
    return json_response(show_delivery(redelivered), 202)


@router.get(
    "/v1/batches/{batch_id}/deliveries",
    response_model=DeliveryList,
    responses=secured(ErrorCode.BATCH_NOT_FOUND),
)
async def deliveries_of_batch(batch_id: str, store: StoreOf, principal: WithReadScope) -> Response:
    """List what was, or is to be, sent to a batch's webhook, as for a job."""
    found = await store.of(principal.tenant, list_deliveries, checked_batch_id(batch_id), find_batch)
    return json_response({"object": "list", "data": [show_delivery(delivery) for delivery in found]})


@router.post(
    "/v1/batches/{batch_id}/deliveries/{delivery_id}/redeliver",
    status_code=202,
    response_model=Delivery,
    responses=secured(ErrorCode.BATCH_NOT_FOUND, ErrorCode.NOT_FOUND),
)
async def redeliver_of_batch(batch_id: str, delivery_id: str, store: StoreOf, principal: WithWebhookScope) -> Response:
    """Send a delivery of a batch again, as for a job."""
    batch_id = checked_batch_id(batch_id)
    delivery_id = delivery_id if re.fullmatch(DELIVERY_ID, delivery_id) else ""
    redelivered = await store.of(principal.tenant, redeliver, batch_id, delivery_id, find_batch)
    return json_response(show_delivery(redelivered), 202)


@router.get("/v1/webhook-secrets", response_model=WebhookSecretList, responses=secured())
async def secrets(store: StoreOf, principal: WithWebhookScope) -> Response:
    """List the secrets that webhooks are signed with: one, or two while it is being changed, the new one first."""
    live = await store.of(principal.tenant, live_secrets, new_secret)
    return json_response(show_secrets(live), headers=NO_STORE)


@router.post("/v1/webhook-secrets/rotate", response_model=WebhookSecretList, responses=secured())
async def rotate(service: ServiceOf, principal: WithWebhookScope) -> Response:
    """Make a new secret. For a day, unless the server is set otherwise, the one before signs too, so that a receiver
    may be given the new one at any time in between. An older one that still signed does not any more.
    """
    live = await service.store.of(
        principal.tenant,
        rotate_secret,
        new_secret,
        service.secret_overlap_seconds,
        by=principal.author,
    )
    return json_response(show_secrets(live), headers=NO_STORE)
