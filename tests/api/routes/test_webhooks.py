"""Webhooks end to end: the behaviour of receivers, and what the API then shows."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import WebhookVerificationError

from api.answers.schemas.jobs import JobEvent
from tests.api.delivering import (
    EMPTY_JOB,
    after_attempts,
    deliveries,
    delivering_api,
    delivery_when,
    parse_request,
    secrets,
    submit_with_webhook,
    verified,
)
from tests.api.every_route import BODY
from tests.api.serving import Json, RunningApi, eventually
from tests.api.tiny_model import TinyModel
from tests.webhooks.receivers import Endless, Receiver, Script, answering, hang, status

METADATA = "http://169.254.169.254/latest/meta-data/"
GIGABYTE = 2**30


@pytest.fixture(scope="module")
def api(model: TinyModel, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    """A server shared by all tests here, since every test has receivers, and so endpoints, of its own."""
    folder = tmp_path_factory.mktemp("webhooks")
    path = folder / "scoreline.db"
    shutil.copy(sqlite_template, path)
    with delivering_api(model.directory, f"sqlite:///{path}", folder) as api:
        yield api


def test_an_event_is_signed_and_names_the_status_of_its_job(api: RunningApi) -> None:
    with Receiver(status(200, body=b"thanks")) as receiver:
        job = api.submit(**BODY, webhook={"url": receiver.url()})
        delivery = delivery_when(api, job["id"], lambda one: one["state"] == "delivered", "delivered")
    (request,) = receiver.requests
    event = verified(secrets(api)[0], request)
    JobEvent.model_validate(event, strict=True)
    assert event["type"] == "job.succeeded"
    assert event["data"] == {"id": job["id"], "status": "succeeded", "urls": job["urls"]}
    assert f"webhook-id: {delivery['id']}".encode() in request
    assert b"content-type: application/json" in request
    (attempt,) = delivery["attempts"]
    assert {name: attempt[name] for name in ("number", "outcome", "status", "response", "detail")} == {
        "number": 1,
        "outcome": "delivered",
        "status": 200,
        "response": "thanks",
        "detail": "",
    }
    assert delivery["next_attempt_at"] is None
    assert delivery["endpoint"] == {"failing_since": None, "disabled_at": None}


def test_the_signature_depends_on_the_secret_and_the_bytes(api: RunningApi) -> None:
    with Receiver(status(204)) as receiver:
        after_attempts(api, submit_with_webhook(api, receiver.url()))
    (request,) = receiver.requests
    with pytest.raises(WebhookVerificationError):
        verified("whsec_" + "A" * 32, request)
    with pytest.raises(WebhookVerificationError):
        verified(secrets(api)[0], request.replace(b"succeeded", b"cancelled"))


BAD_RECEIVERS: dict[str, tuple[Script, str, int | None, str]] = {
    "answers 500": (status(500, body=b"oops"), "status", 500, ""),
    "hangs": (hang, "timeout", None, ""),
    "closes without an answer": (answering(b""), "connection", None, ""),
    "closes in mid-headers": (answering(b"HTTP/1.1 200 OK\r\nContent-Le"), "connection", None, ""),
    "redirects to a metadata address": (status(302, f"Location: {METADATA}"), "redirect", None, METADATA),
    "asks for time": (status(429, "Retry-After: 600"), "status", 429, ""),
    "asks for time until a date": (status(503, "Retry-After: Fri, 01 Jan 2100 00:00:00 GMT"), "status", 503, ""),
    "says something else than HTTP": (answering(b"220 mail.example ESMTP\r\n\r\n"), "bad_response", None, ""),
}


@pytest.mark.parametrize("kind", BAD_RECEIVERS)
def test_the_delivery_log_shows_the_failure_of_a_receiver_and_the_next_attempt(api: RunningApi, kind: str) -> None:
    script, outcome, code, detail = BAD_RECEIVERS[kind]
    before = time.time()
    with Receiver(script) as receiver:
        delivery = after_attempts(api, submit_with_webhook(api, receiver.url()))
    (attempt,) = delivery["attempts"]
    assert (attempt["outcome"], attempt["status"]) == (outcome, code)
    assert detail in attempt["detail"]
    assert 0 <= attempt["seconds"] < 3
    assert delivery["state"] == "pending"
    pause = delivery["next_attempt_at"] - before
    match kind:
        case "asks for time":
            assert 600 <= pause < 720
        case "asks for time until a date":
            assert 86_000 < pause < 87_000, "no longer than a day"
        case _:
            assert 5 <= pause < 12
    assert delivery["endpoint"]["failing_since"] is not None
    assert delivery["endpoint"]["disabled_at"] is None


OVERLONG: dict[str, Script] = {
    "closes in mid-response": answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it"),
    "sends a gigabyte": Endless(f"HTTP/1.1 200 OK\r\nContent-Length: {GIGABYTE}\r\n\r\n".encode(), b"x" * 65_536),
}


@pytest.mark.parametrize("kind", OVERLONG)
def test_a_2xx_counts_as_delivered_even_if_the_response_body_is_cut_off_or_endless(api: RunningApi, kind: str) -> None:
    with Receiver(OVERLONG[kind]) as receiver:
        delivery = after_attempts(api, submit_with_webhook(api, receiver.url()))
    (attempt,) = delivery["attempts"]
    assert (delivery["state"], attempt["outcome"], attempt["status"]) == ("delivered", "delivered", 200)
    assert "the rest of the response was not read" in attempt["detail"]
    assert len(attempt["response"]) <= 1_024


def test_a_410_disables_the_endpoint_and_later_jobs_get_a_warning(api: RunningApi) -> None:
    with Receiver(status(410)) as receiver:
        delivery = after_attempts(api, submit_with_webhook(api, receiver.url()))
        assert (delivery["state"], delivery["attempts"][0]["status"]) == ("failed", 410)
        assert delivery["endpoint"]["disabled_at"] is not None
        job = api.submit(**EMPTY_JOB, webhook={"url": receiver.url()})
        assert any("nothing is sent to webhook.url" in warning for warning in job["warnings"])
        skipped = delivery_when(api, job["id"], lambda one: one["state"] == "skipped", "skipped")
        assert skipped["attempts"] == []
        assert receiver.accepted == 1


def test_a_redelivery_sends_the_same_event_and_its_success_enables_the_endpoint(api: RunningApi) -> None:
    answers = [status(410), status(200)]
    with Receiver(lambda connection: answers.pop(0)(connection)) as receiver:
        job_id = submit_with_webhook(api, receiver.url())
        first = after_attempts(api, job_id)
        response = api.client.post(f"/v1/jobs/{job_id}/deliveries/{first['id']}/redeliver")
        assert response.status_code == 202, response.text
        again = delivery_when(api, job_id, lambda one: one["state"] == "delivered", "delivered")
    one, two = (verified(secrets(api)[0], request) for request in receiver.requests)
    assert one == two
    assert again["id"] == first["id"]
    assert [attempt["number"] for attempt in again["attempts"]] == [1, 2]
    assert again["endpoint"] == {"failing_since": None, "disabled_at": None}
    assert api.submit(**EMPTY_JOB, webhook={"url": receiver.url()})["warnings"] == []


def test_an_address_that_was_allowed_when_the_job_was_accepted_is_checked_again_before_sending(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    """The API accepted the URL, but the delivery process has other settings by now."""
    with (
        Receiver(status(200)) as receiver,
        delivering_api(model.directory, sqlite_url, tmp_path, webhook_allowed_networks=()) as api,
    ):
        delivery = after_attempts(api, submit_with_webhook(api, receiver.url()))
        assert delivery["attempts"][0]["outcome"] == "forbidden_address"
        assert receiver.accepted == 0


def test_receivers_can_verify_every_delivery_during_a_rotation_of_the_secret(api: RunningApi) -> None:
    """A receiver has the old secret before the rotation, and either of the two after it."""
    verdicts: list[Json] = []
    known: list[str] = secrets(api)[:1]
    with Receiver(status(200)) as receiver:

        def deliver() -> None:
            after_attempts(api, submit_with_webhook(api, receiver.url()))
            verdicts.append(verified(known[0], receiver.requests[-1]))

        deliver()
        rotated = api.client.post("/v1/webhook-secrets/rotate").json()["data"]
        new, old = (one["secret"] for one in rotated)
        assert [old] == known
        assert new != old
        assert rotated[0]["expires_at"] is None
        assert 86_000 < rotated[1]["expires_at"] - time.time() < 87_000
        deliver()
        known[:] = [new]
        deliver()
        assert len(verdicts) == 3


def test_responses_with_secrets_must_not_be_stored_by_caches(api: RunningApi) -> None:
    assert api.client.get("/v1/webhook-secrets").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("webhook", "code", "param"),
    [
        ("https://example.com/", "invalid_request", "webhook"),
        ([], "invalid_request", "webhook"),
        ({}, "invalid_request", "webhook.url"),
        ({"url": 7}, "invalid_request", "webhook.url"),
        ({"url": "https://user@example.com/"}, "webhook_url_forbidden", "webhook.url"),
        ({"url": "https://10.0.0.1/"}, "webhook_url_forbidden", "webhook.url"),
        ({"url": "ftp://example.com/"}, "webhook_url_forbidden", "webhook.url"),
        ({"url": "https://example.com/\0"}, "webhook_url_forbidden", "webhook.url"),
        ({"url": "https://example.com/", "events": []}, "invalid_request", "webhook.events"),
        ({"url": "https://example.com/", "events": "job.failed"}, "invalid_request", "webhook.events"),
        ({"url": "https://example.com/", "events": ["job.failed", "job.lost"]}, "invalid_request", "webhook.events[1]"),
        ({"url": "https://example.com/", "events": [None]}, "invalid_request", "webhook.events"),
    ],
)
def test_an_invalid_webhook_is_refused(api: RunningApi, webhook: Any, code: str, param: str) -> None:
    body = EMPTY_JOB | {"webhook": webhook}
    lines = json.dumps({name: value for name, value in body.items() if name != "items"})
    for response in (
        api.client.post("/v1/jobs", json=body),
        api.client.post("/v1/jobs", content=lines, headers={"Content-Type": "application/x-ndjson"}),
    ):
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert (error["code"], error["param"]) == (code, param)


def test_the_job_object_shows_its_webhook(api: RunningApi) -> None:
    webhook = {"url": "https://hooks.example.com/x", "events": ["job.expired", "job.failed"], "secret": "mine"}
    job = api.submit(**EMPTY_JOB, webhook=webhook)
    assert job["webhook"] == {"url": webhook["url"], "events": ["job.failed", "job.expired"]}
    assert job["warnings"] == ['unknown field "webhook.secret" was ignored']
    assert deliveries(api, job["id"]) == []
    assert api.submit(**EMPTY_JOB)["webhook"] is None


def test_the_webhook_of_an_upload_is_delivered(api: RunningApi) -> None:
    with Receiver(status(200)) as receiver:
        first = {"query": "a", "label_token_ids": [70], "webhook": {"url": receiver.url()}}
        lines = "".join(json.dumps(line) + "\n" for line in (first, " b", " c"))
        response = api.client.post("/v1/jobs", content=lines, headers={"Content-Type": "application/x-ndjson"})
        assert response.status_code == 202, response.text
        delivery = after_attempts(api, response.json()["id"])
    assert (delivery["event"], delivery["state"]) == ("job.succeeded", "delivered")


def test_the_webhook_of_a_call_is_ignored_with_a_warning(api: RunningApi) -> None:
    with Receiver(status(200)) as receiver:
        answer = api.score(**BODY, webhook={"url": receiver.url()})
        assert 'unknown field "webhook" was ignored' in answer["warnings"]
        assert deliveries(api, answer["id"]) == []


def test_an_idempotency_key_with_a_different_webhook_is_refused(api: RunningApi) -> None:
    headers = {"Idempotency-Key": "with-a-webhook"}
    webhook = {"url": "https://hooks.example.com/", "events": ["job.failed"]}
    first = api.submit(headers, **EMPTY_JOB, webhook=webhook)
    assert api.submit(headers, **EMPTY_JOB, webhook=webhook)["id"] == first["id"]
    other = api.client.post("/v1/jobs", json=EMPTY_JOB, headers=headers)
    assert other.json()["error"]["code"] == "idempotency_key_reused"


@pytest.mark.parametrize("delivery_id", ["msg_" + "0" * 32, "msg_x", "%00", "job"])
def test_redelivering_an_unknown_delivery_is_not_found(api: RunningApi, delivery_id: str) -> None:
    job_id = api.submit(**EMPTY_JOB)["id"]
    response = api.client.post(f"/v1/jobs/{job_id}/deliveries/{delivery_id}/redeliver")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


def test_a_hanging_receiver_does_not_delay_deliveries_to_other_hosts(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    released = threading.Event()
    settings: dict[str, Any] = {"webhook_timeout_seconds": 15.0, "delivery_host_concurrency": 2}
    with (
        delivering_api(model.directory, sqlite_url, tmp_path, **settings) as api,
        Receiver(lambda connection: released.wait(20) and status(200)(connection)) as slow,
        Receiver(status(200), host="127.0.0.2") as quick,
    ):
        held = [submit_with_webhook(api, slow.url()) for _ in range(6)]
        eventually(lambda: len(slow.requests) == 2, "as many deliveries as are allowed at a time")
        assert after_attempts(api, submit_with_webhook(api, quick.url("127.0.0.2")))["state"] == "delivered"
        assert len(slow.requests) == 2, "not more deliveries than allowed"
        released.set()
        for job_id in held:
            assert after_attempts(api, job_id)["state"] == "delivered"
        ids = [parse_request(request)[0]["webhook-id"] for request in slow.requests]
        assert len(ids) == len(set(ids)) == 6


def test_webhooks_are_delivered_on_postgresql(model: TinyModel, postgres_url: str, tmp_path: Path) -> None:
    with delivering_api(model.directory, postgres_url, tmp_path) as api, Receiver(status(200)) as receiver:
        job = api.submit(**BODY, webhook={"url": receiver.url()})
        assert after_attempts(api, job["id"])["state"] == "delivered"
        assert verified(secrets(api)[0], receiver.requests[0])["data"]["id"] == job["id"]
