"""A process that delivers webhooks is killed, frozen or stopped while it holds one."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import text

from jobs.queue.accept import accept
from jobs.store.webhook_events import Webhook
from jobs.webhooks.delivery_log import DeliveryRecord, list_deliveries
from jobs.webhooks.tables import DeliveryState
from tests.api.delivering import parse_request
from tests.databases import quick_on
from tests.faults.deployment import SECONDS, FaultyDeployment, Launched, names_of
from tests.faults.injection.places import CLAIM_DELIVERIES, RECORD_ATTEMPT
from tests.faults.injection.points import Point
from tests.jobs.work import submission
from tests.services import wait_until
from tests.webhooks.receivers import Receiver, status
from tests.workers.conftest import Store

BETWEEN_REQUEST_AND_COMMIT = Point(RECORD_ATTEMPT, "before")
UNCOMMITTED = [
    Point(CLAIM_DELIVERIES, "after"),
    Point(RECORD_ATTEMPT, "commit"),
]


def end_job_with_webhook(store: Store, receiver: Receiver) -> str:
    """Have a job end that has a webhook. Return its id."""
    webhook = Webhook(receiver.url(), "127.0.0.1")
    return accept(store.database, submission(chunks=0, webhook=webhook)).job_id


def delivery(store: Store, job_id: str) -> DeliveryRecord:
    (found,) = list_deliveries(store.database, "default", job_id)
    return found


def wait_until_delivered(store: Store, job_id: str) -> DeliveryRecord:
    wait_until(lambda: delivery(store, job_id).state is DeliveryState.DELIVERED, "the delivery", SECONDS)
    return delivery(store, job_id)


def expire_claims(store: Store) -> None:
    """Let the leases of all deliveries run out now."""
    with store.database.write() as connection:
        connection.execute(text("UPDATE webhook_deliveries SET due_at = due_at - 3600 WHERE claim_id IS NOT NULL"))


def outcomes(record: DeliveryRecord) -> list[tuple[int, str | None]]:
    return [(attempt.number, attempt.reason) for attempt in record.attempts]


def ids(receiver: Receiver) -> list[str]:
    return [parse_request(request)[0]["webhook-id"] for request in receiver.requests]


def kill_and_rescue(deployment: FaultyDeployment, store: Store, receiver: Receiver, point: Point) -> DeliveryRecord:
    job_id = end_job_with_webhook(store, receiver)
    deployment.launch_deliverer(point, wait=False).wait_until_killed()
    assert delivery(store, job_id).state is DeliveryState.PENDING
    expire_claims(store)
    deployment.launch_deliverer()
    return wait_until_delivered(store, job_id)


@quick_on("postgres")
def test_a_webhook_whose_deliverer_is_killed_after_the_request_is_sent_again_under_the_same_id(
    deployment: FaultyDeployment, store: Store
) -> None:
    with Receiver(status(200)) as receiver:
        record = kill_and_rescue(deployment, store, receiver, BETWEEN_REQUEST_AND_COMMIT)
    assert outcomes(record) == [(1, "lost"), (2, None)]
    assert ids(receiver) == [record.id, record.id]
    first, second = (parse_request(request)[1] for request in receiver.requests)
    assert first == second


@pytest.mark.faults
@pytest.mark.parametrize("point", UNCOMMITTED, ids=names_of(UNCOMMITTED))
def test_a_webhook_whose_deliverer_is_killed_at_another_point_is_sent_again(
    deployment: FaultyDeployment, store: Store, point: Point
) -> None:
    with Receiver(status(200)) as receiver:
        record = kill_and_rescue(deployment, store, receiver, point)
    assert outcomes(record) == [(1, "lost"), (2, None)]
    assert set(ids(receiver)) == {record.id}


@pytest.mark.faults
def test_the_late_outcome_of_a_frozen_deliverer_is_fenced(deployment: FaultyDeployment, store: Store) -> None:
    with Receiver(status(200)) as receiver:
        job_id = end_job_with_webhook(store, receiver)
        frozen = deployment.launch_deliverer(Point(RECORD_ATTEMPT, "before", signal="SIGSTOP"), wait=False)
        frozen.wait_until_frozen()
        expire_claims(store)
        other = deployment.launch_deliverer()
        record = wait_until_delivered(store, job_id)
        assert other.terminate() == 0
        frozen.thaw()
        wait_until(lambda: frozen.logged("an attempt took longer than its lease"), "the late outcome", SECONDS)
        assert delivery(store, job_id) == record
    assert ids(receiver) == [record.id, record.id]


@quick_on("postgres")
def test_a_stopping_deliverer_waits_for_the_request_under_way_and_begins_no_other(
    deployment: FaultyDeployment, store: Store
) -> None:
    answer = threading.Event()

    def stopping(process: Launched) -> bool:
        return process.logged("stopping")

    with Receiver(lambda connection: answer.wait(SECONDS) and status(200)(connection)) as receiver:
        deliverer = deployment.launch_deliverer(webhook_timeout_seconds=SECONDS)
        first = end_job_with_webhook(store, receiver)
        wait_until(lambda: len(receiver.requests) == 1, "the request", SECONDS)
        deliverer.process.terminate()
        wait_until(lambda: stopping(deliverer), "it to be stopping", SECONDS)
        later = end_job_with_webhook(store, receiver)
        answer.set()
        assert deliverer.process.wait(SECONDS) == 0, deliverer.log
        assert outcomes(delivery(store, first)) == [(1, None)]
        assert outcomes(delivery(store, later)) == []
        deployment.launch_deliverer()
        wait_until_delivered(store, later)
