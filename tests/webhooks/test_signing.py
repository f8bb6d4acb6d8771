"""Signatures agree with the specification of Standard Webhooks and with its Python package."""

from __future__ import annotations

import base64
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from webhooks.signing import new_secret, sign

BODY = b'{"type":"job.succeeded","data":{"id":"job_1","status":"succeeded"}}'


def headers(secrets: list[str], body: bytes = BODY, message_id: str = "msg_1") -> dict[str, str]:
    now = int(time.time())
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
        "webhook-signature": sign(secrets, message_id, now, body),
    }


def test_the_specifications_own_example() -> None:
    signature = sign(
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_receiver_with_the_standard_package_verifies_it() -> None:
    secret = new_secret()
    assert Webhook(secret).verify(BODY, headers([secret])) == json.loads(BODY)


@given(body=st.text(), message_id=st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True))
def test_every_body_and_id_is_verified_by_the_standard_package(body: str, message_id: str) -> None:
    secret = new_secret()
    given = headers([secret], body.encode(), message_id)
    Webhook(secret).verify(body.encode(), given, json_parse=False)


@pytest.mark.parametrize("change", ["body", "webhook-id", "webhook-timestamp", "secret"])
def test_a_changed_message_or_secret_is_not_verified(change: str) -> None:
    secret = new_secret()
    given = headers([secret])
    changed = given | ({change: given[change][:-1] + "7"} if change in given else {})
    if changed == given and change in given:
        changed[change] = given[change][:-1] + "8"
    receiver = Webhook(new_secret() if change == "secret" else secret)
    with pytest.raises(WebhookVerificationError):
        receiver.verify(BODY + b" " if change == "body" else BODY, changed)


def test_a_message_signed_with_two_secrets_is_verified_by_either() -> None:
    old, new, other = new_secret(), new_secret(), new_secret()
    given = headers([new, old])
    for secret in (old, new):
        Webhook(secret).verify(BODY, given)
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(BODY, given)


def test_secrets_are_long_and_never_the_same() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    for secret in secrets:
        assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS*",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2La" + "é" * 4,
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
    ],
)
def test_a_malformed_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ValueError, match="a secret is whsec_") as caught:
        sign([secret], "msg_1", 1, BODY)
    assert len(secret) < 8 or secret[6:] not in str(caught.value)


@pytest.mark.parametrize("message_id", ["", "msg.1"])
def test_an_id_that_could_be_read_in_two_ways_is_refused(message_id: str) -> None:
    with pytest.raises(ValueError, match="can't be signed"):
        sign([new_secret()], message_id, 1, BODY)


def test_signing_without_a_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="no secret"):
        sign([], "msg_1", 1, BODY)
