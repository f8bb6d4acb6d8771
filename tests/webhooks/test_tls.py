"""TLS verifies the name in the URL, whatever address it resolves to, and trusts only configured authorities."""

from __future__ import annotations

import ssl
import threading
from ipaddress import ip_network
from pathlib import Path

import pytest
import trustme

from settings.errors.mistakes import SettingError
from settings.webhooks import WebhookSettings
from tests.webhooks.receivers import Receiver, Script, answering, dribbling, hang, status
from webhooks.sending import Failed, Sender, Sent

NAME = "receiver.example"
HEADERS = {"webhook-id": "msg_1"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def settings(authority: trustme.CA, tmp_path: Path) -> WebhookSettings:
    """With a private authority, as a company has it."""
    file = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    return WebhookSettings(webhook_allowed_networks=(ip_network("127.0.0.0/8"),), webhook_ca_file=file)


def serving(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    """What a receiver of these names serves with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def deliver(receiver: Receiver, settings: WebhookSettings, host: str = NAME) -> Sent | Failed:
    with Sender(settings, lookup=lambda name: ["127.0.0.1"]) as sender:
        return sender.send(receiver.url(host, "https"), HEADERS, b"{}")


def test_tls_and_the_host_header_use_the_name_and_not_the_address(
    authority: trustme.CA, settings: WebhookSettings
) -> None:
    asked_for: list[str | None] = []
    context = serving(authority, NAME)
    context.sni_callback = lambda connection, name, context: asked_for.append(name)
    with Receiver(status(200), tls=context) as receiver:
        outcome = deliver(receiver, settings)
    assert isinstance(outcome, Sent), outcome
    assert outcome.status == 200
    assert asked_for == [NAME]
    assert f"host: {NAME}:{receiver.port}".encode() in receiver.requests[0].lower()


def test_a_certificate_for_an_address_is_accepted(authority: trustme.CA, settings: WebhookSettings) -> None:
    with Receiver(status(200), tls=serving(authority, "127.0.0.1")) as receiver:
        outcome = deliver(receiver, settings, "127.0.0.1")
    assert isinstance(outcome, Sent), outcome


def test_many_threads_share_a_sender(authority: trustme.CA, settings: WebhookSettings) -> None:
    outcomes: list[Sent | Failed] = []
    with (
        Receiver(status(200), tls=serving(authority, NAME)) as receiver,
        Sender(settings, lookup=lambda name: ["127.0.0.1"]) as sender,
    ):
        url = receiver.url(NAME, "https")
        threads = [threading.Thread(target=lambda: outcomes.append(sender.send(url, HEADERS, b"{}"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [outcome.status for outcome in outcomes if isinstance(outcome, Sent)] == [200] * 8


@pytest.mark.parametrize("names", [["other.example"], ["127.0.0.1"], ["*.receiver.example"]])
def test_a_certificate_for_another_name_is_refused(
    names: list[str], authority: trustme.CA, settings: WebhookSettings
) -> None:
    with Receiver(status(200), tls=serving(authority, *names)) as receiver:
        outcome = deliver(receiver, settings)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "tls"
    assert NAME in outcome.detail
    assert receiver.requests == [], "nothing was sent"


def test_a_certificate_of_an_unknown_authority_is_refused(settings: WebhookSettings) -> None:
    with Receiver(status(200), tls=serving(trustme.CA(), NAME)) as receiver:
        outcome = deliver(receiver, settings)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "tls"
    assert receiver.requests == []


def test_authorities_named_in_the_environment_are_not_trusted(
    authority: trustme.CA, settings: WebhookSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.webhook_ca_file is not None
    monkeypatch.setenv("SSL_CERT_FILE", str(settings.webhook_ca_file))
    with Receiver(status(200), tls=serving(authority, NAME)) as receiver:
        outcome = deliver(receiver, settings.model_copy(update={"webhook_ca_file": None}))
    assert isinstance(outcome, Failed)
    assert outcome.reason == "tls"


def test_old_versions_of_tls_are_refused(authority: trustme.CA, settings: WebhookSettings) -> None:
    context = serving(authority, NAME)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.deprecated_call():
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with Receiver(status(200), tls=context) as receiver:
        outcome = deliver(receiver, settings)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "tls"


def test_a_receiver_without_tls_is_refused(settings: WebhookSettings) -> None:
    with Receiver(answering(b"HTTP/1.1 200 OK\r\n\r\n"), reads=False) as receiver:
        outcome = deliver(receiver, settings)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "tls"


def test_a_connection_that_ends_in_the_handshake_is_a_failure(settings: WebhookSettings) -> None:
    with Receiver(lambda connection: connection.recv(1_024), reads=False) as receiver:
        outcome = deliver(receiver, settings)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "connection"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(hang, id="hangs"),
        # A record of a handshake, 16 KiB of it.
        pytest.param(dribbling(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"), id="dribbles"),
    ],
)
def test_a_handshake_that_is_slow_is_cut_off_in_time(script: Script, settings: WebhookSettings) -> None:
    hasty = settings.model_copy(update={"webhook_connect_seconds": 0.4})
    with Receiver(script, reads=False) as receiver:
        outcome = deliver(receiver, hasty)
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.detail) == ("timeout", "the TLS handshake took too long")
    assert 0.3 <= outcome.seconds < 10.0


def test_an_invalid_authority_file_is_an_error_at_the_start(settings: WebhookSettings, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for file in (empty, tmp_path / "nowhere.pem"):
        with pytest.raises(SettingError, match=f"SCORELINE_WEBHOOK_CA_FILE is '{file}': it can't be read as PEM"):
            Sender(settings.model_copy(update={"webhook_ca_file": file}))
