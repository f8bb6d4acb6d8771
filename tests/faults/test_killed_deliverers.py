"""A process that delivers webhooks is killed, frozen or told to stop while it holds one."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import text

from jobs.queue.accept import accept
from jobs.store.records import Webhook
from jobs.webhooks.delivery_log import DeliveryRecord, list_deliveries
from jobs.webhooks.tables import DeliveryState
from tests.api.delivering import parse_request
from tests.faults.deployment import SECONDS, FaultyDeployment, Launched, names_of
from tests.faults.injection.points import Point
from tests.jobs.work import submission
from tests.services import wait_until
from tests.webhooks.receivers import Receiver, status
from tests.workers.conftest import Store

BETWEEN_REQUEST_AND_COMMIT = Point("workers.delivery.loop.settle_delivery", "before")
UNCOMMITTED = [
    Point("workers.delivery.loop.claim_deliveries", "after"),
    Point("workers.delivery.loop.settle_delivery", "commit"),
]


def tell(store: Store, receiver: Receiver) -> str:
    """Have a job end whose end is to be told. Returns its id."""
    webhook = Webhook(receiver.url(), "127.0.0.1")
    return accept(store.database, submission(chunks=0, webhook=webhook)).job_id


def delivery(store: Store, job_id: str) -> DeliveryRecord:
    (found,) = list_deliveries(store.database, "default", job_id)
    return found


def wait_until_delivered(store: Store, job_id: str) -> DeliveryRecord:
    wait_until(lambda: delivery(store, job_id).state is DeliveryState.DELIVERED, "the delivery", SECONDS)
    return delivery(store, job_id)


def expire_claims(store: Store) -> None:
    """As if the lease of every delivery that is being sent were over."""
    with store.database.write() as connection:
        connection.execute(text("UPDATE webhook_deliveries SET due_at = due_at - 3600 WHERE claim_id IS NOT NULL"))


def outcomes(record: DeliveryRecord) -> list[tuple[int, str | None]]:
    return [(attempt.number, attempt.reason) for attempt in record.attempts]


def ids(receiver: Receiver) -> list[str]:
    return [parse_request(request)[0]["webhook-id"] for request in receiver.requests]


def kill_and_rescue(deployment: FaultyDeployment, store: Store, receiver: Receiver, point: Point) -> DeliveryRecord:
    job_id = tell(store, receiver)
    deployment.launch_deliverer(point, wait=False).wait_until_killed()
    assert delivery(store, job_id).state is DeliveryState.PENDING
    expire_claims(store)
    deployment.launch_deliverer()
    return wait_until_delivered(store, job_id)


def test_killed_between_the_request_and_its_commit_it_is_sent_again_under_the_same_id(
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
def test_killed_elsewhere_it_is_sent_again(deployment: FaultyDeployment, store: Store, point: Point) -> None:
    with Receiver(status(200)) as receiver:
        record = kill_and_rescue(deployment, store, receiver, point)
    assert outcomes(record) == [(1, "lost"), (2, None)]
    assert set(ids(receiver)) == {record.id}


@pytest.mark.faults
def test_frozen_past_its_lease_its_late_word_is_fenced(deployment: FaultyDeployment, store: Store) -> None:
    with Receiver(status(200)) as receiver:
        job_id = tell(store, receiver)
        frozen = deployment.launch_deliverer(
            Point("workers.delivery.loop.settle_delivery", "before", signal="SIGSTOP"), wait=False
        )
        frozen.wait_until_frozen()
        expire_claims(store)
        other = deployment.launch_deliverer()
        record = wait_until_delivered(store, job_id)
        assert other.terminate() == 0
        frozen.thaw()
        wait_until(lambda: frozen.logged("an attempt took longer than its lease"), "its late word", SECONDS)
        assert delivery(store, job_id) == record
    assert ids(receiver) == [record.id, record.id]


def test_told_to_stop_it_waits_for_what_is_being_sent_and_begins_nothing(
    deployment: FaultyDeployment, store: Store
) -> None:
    answer = threading.Event()

    def stopping(process: Launched) -> bool:
        return process.logged("stopping")

    with Receiver(lambda connection: answer.wait(SECONDS) and status(200)(connection)) as receiver:
        deliverer = deployment.launch_deliverer(webhook_timeout_seconds=SECONDS)
        first = tell(store, receiver)
        wait_until(lambda: len(receiver.requests) == 1, "the request", SECONDS)
        deliverer.process.terminate()
        wait_until(lambda: stopping(deliverer), "it to be stopping", SECONDS)
        later = tell(store, receiver)
        answer.set()
        assert deliverer.process.wait(SECONDS) == 0, deliverer.log
        assert outcomes(delivery(store, first)) == [(1, None)]
        assert outcomes(delivery(store, later)) == []
        deployment.launch_deliverer()
        wait_until_delivered(store, later)
