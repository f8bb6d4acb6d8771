"""The receiver in ``examples/``, run as a process: it accepts signed webhooks and stores each event once."""

from __future__ import annotations

import http.client
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from queue import Queue
from typing import IO

import pytest
from standardwebhooks.webhooks import Webhook

from settings.webhooks import WebhookSettings
from webhooks.sending import Sender, Sent
from webhooks.signing import new_secret, sign

EXAMPLE = Path(__file__).parents[2] / "examples" / "receiver.py"
OLD, NEW, OTHER = (new_secret() for _ in range(3))
BODY = b'{"type": "job.succeeded", "timestamp": "2026-01-01T00:00:00Z", "data": {"id": "job_1", "status": "succeeded"}}'


@dataclass
class Running:
    """The example as a process. lines: what it has printed and nobody has read yet."""

    port: int
    lines: Queue[str]
    events: Path

    def post(self, headers: dict[str, str], body: bytes = BODY) -> int:
        """The status of its answer."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request("POST", "/", body, headers)
            return connection.getresponse().status

    def said(self) -> str:
        return self.lines.get(timeout=30)

    def stored(self) -> list[tuple[str, str]]:
        with closing(sqlite3.connect(self.events)) as connection:
            return connection.execute("SELECT id, body FROM events ORDER BY id").fetchall()


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """It knows two secrets, as in the middle of a rotation."""
    events = tmp_path_factory.mktemp("received") / "events.db"
    process = subprocess.Popen(
        [sys.executable, EXAMPLE, "--port", "0", "--events", events],
        env=os.environ | {"WEBHOOK_SECRET": f"{OLD},{NEW}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    lines: Queue[str] = Queue()

    def read(stdout: IO[str]) -> None:
        for line in stdout:
            lines.put(line.strip())

    reader = threading.Thread(target=read, args=(process.stdout,))
    reader.start()
    assert first.startswith("receiving at http://127.0.0.1:")
    yield Running(int(first.strip().strip("/").rpartition(":")[2]), lines, events)
    process.terminate()
    process.wait(30)
    reader.join(30)
    process.stdout.close()


def signed(message_id: str, *secrets: str, at: float | None = None, body: bytes = BODY) -> dict[str, str]:
    timestamp = int(time.time() if at is None else at)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secrets, message_id, timestamp, body),
    }


def test_an_event_that_is_sent_several_times_is_stored_once(receiver: Running) -> None:
    settings = WebhookSettings(webhook_allowed_networks=(ip_network("127.0.0.0/8"),))
    with Sender(settings) as sender:
        for said in ("new", "again", "again"):
            outcome = sender.send(f"http://127.0.0.1:{receiver.port}/", signed("msg_sent", NEW, OLD), BODY)
            assert isinstance(outcome, Sent)
            assert outcome.status == 204
            assert receiver.said() == f"{said}: msg_sent job.succeeded job_1"
    assert ("msg_sent", BODY.decode()) in receiver.stored()


def test_a_webhook_signed_by_the_standard_package_is_accepted(receiver: Running) -> None:
    now = datetime.now(UTC)
    signature = Webhook(OLD).sign("msg_package", now, BODY.decode())
    headers = {
        "webhook-id": "msg_package",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signature,
    }
    assert receiver.post(headers) == 204
    assert receiver.said() == "new: msg_package job.succeeded job_1"


@pytest.mark.parametrize("secrets", [(OLD,), (NEW,), (OTHER, NEW)])
def test_either_secret_verifies_and_one_of_several_signatures_is_enough(
    secrets: tuple[str, ...], receiver: Running
) -> None:
    message_id = f"msg_rotated_{len(secrets)}_{secrets.count(OLD)}"
    assert receiver.post(signed(message_id, *secrets)) == 204
    assert receiver.said() == f"new: {message_id} job.succeeded job_1"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, BODY),
        (signed("msg_bad", OTHER), BODY),
        (signed("msg_bad", NEW), BODY.replace(b"succeeded", b"failed")),
        (signed("msg_bad", NEW) | {"webhook-id": "msg_other"}, BODY),
        (signed("msg_bad", NEW) | {"webhook-timestamp": str(int(time.time()) + 1)}, BODY),
        (signed("msg_bad", NEW) | {"webhook-timestamp": "soon"}, BODY),
        (signed("msg_bad", NEW) | {"webhook-signature": ""}, BODY),
        (signed("msg_bad", NEW) | {"webhook-signature": "v1, v1,\xe9 v2,x"}, BODY),
    ],
)
def test_a_webhook_without_a_valid_signature_is_refused(
    headers: dict[str, str], body: bytes, receiver: Running
) -> None:
    assert receiver.post(headers, body) == 401
    assert receiver.said().startswith("refused: ")
    assert not {"msg_bad", "msg_other"} & {message_id for message_id, _ in receiver.stored()}


@pytest.mark.parametrize("seconds", [-301, 400])
def test_a_replayed_webhook_is_refused(seconds: int, receiver: Running) -> None:
    assert receiver.post(signed("msg_replayed", NEW, at=time.time() + seconds)) == 401
    assert receiver.said() == "refused: webhook-timestamp is not about now"


@pytest.mark.parametrize("headers", [{"content-length": "65537"}, {"transfer-encoding": "chunked"}])
def test_a_body_that_is_too_large_is_not_read(headers: dict[str, str], receiver: Running) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=30)) as connection:
        connection.putrequest("POST", "/")
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 413


@pytest.mark.parametrize("secret", [None, "", "secret", f"{NEW},"], ids=["none", "empty", "no secret", "half a pair"])
def test_the_example_receiver_does_not_start_without_a_secret(secret: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "WEBHOOK_SECRET"}
    outcome = subprocess.run(
        [sys.executable, EXAMPLE, "--port", "0"],
        env=environment | ({} if secret is None else {"WEBHOOK_SECRET": secret}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert outcome.returncode == 2
    assert "set WEBHOOK_SECRET" in outcome.stderr
