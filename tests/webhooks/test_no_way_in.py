"""Webhooks can't be used to reach a private network (SSRF), whatever the spelling of an address.

Every attempt to connect is seen through Python's audit events. Where loopback is meant, a receiver listens there.
"""

from __future__ import annotations

import itertools
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from settings.webhooks import WebhookSettings
from tests.webhooks.receivers import Receiver, status
from tests.webhooks.test_addresses import FORBIDDEN
from webhooks.sending import Failed, Sender, Sent

PUBLIC = "93.184.215.14"
IMPATIENT = WebhookSettings(webhook_connect_seconds=0.2, webhook_timeout_seconds=0.4)


class Connections:
    """Records the addresses that this thread tries to connect to, and prevents connections beyond loopback."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.thread: int | None = None
        sys.addaudithook(self._hear)  # There is no way to take one back.

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "socket.connect" and threading.get_ident() == self.thread:
            address = arguments[1]
            assert isinstance(address, tuple)
            self.tried.append(address[0])
            if not ip_address(address[0]).is_loopback:
                raise OSError("tests connect to nobody outside")


@pytest.fixture(scope="module")
def heard() -> Connections:
    return Connections()


@pytest.fixture
def connections(heard: Connections) -> Iterator[list[str]]:
    heard.tried.clear()
    heard.thread = threading.get_ident()
    yield heard.tried
    heard.thread = None


@pytest.fixture
def inside() -> Iterator[Receiver]:
    """A service that believes itself to be unreachable."""
    with Receiver(status(200, body=b"the crown jewels")) as receiver:
        yield receiver


def test_special_addresses_are_never_connected_to(connections: list[str]) -> None:
    answers: list[str] = []
    with Sender(IMPATIENT, lookup=lambda name: answers) as sender:
        for address in FORBIDDEN:
            answers[:] = [address]
            literal = address.partition("%")[0]
            for url, reason in (
                (f"https://{f'[{literal}]' if ':' in literal else literal}/", "forbidden_address"),
                ("https://receiver.example/", "resolution"),
            ):
                outcome = sender.send(url, {}, b"{}")
                assert isinstance(outcome, Failed), url
                assert outcome.reason == reason, (url, address)
        assert connections == []
        answers[:] = [PUBLIC]
        sender.send("https://receiver.example/", {}, b"{}")
        assert connections == [PUBLIC], "it would have been heard"


LOOPBACK_SPELT = [
    *("127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "0"),
    *("[::1]", "[::]", "[::127.0.0.1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:7f00:1]"),
    *(
        "localhost",
        "LOCALHOST",
        "localhost.",
        "ⓛocalhost",
        "１２７.0.0.1",
        "127。0。0。1",
        "127.0.0.1.",
        "%6cocalhost",
    ),
    *("receiver.example@127.0.0.1", "receiver.example:443@127.0.0.1", "127.0.0.1\\@receiver.example"),
]


def test_no_spelling_of_loopback_is_connected_to(inside: Receiver, connections: list[str]) -> None:
    settings = IMPATIENT.model_copy(update={"webhook_ports": (inside.port,)})
    with Sender(settings) as sender:
        for host, scheme in itertools.product(LOOPBACK_SPELT, ("https", "http")):
            outcome = sender.send(f"{scheme}://{host}:{inside.port}/", {}, b"{}")
            assert isinstance(outcome, Failed), host
            is_name = host.lower() == "localhost" and scheme == "https"
            assert outcome.reason == ("resolution" if is_name else "forbidden_address"), host
    assert connections == []
    assert inside.accepted == 0


def test_forbidden_ports_are_never_connected_to(connections: list[str]) -> None:
    with Sender(IMPATIENT, lookup=lambda name: [PUBLIC]) as sender:
        for port in (1, 22, 25, 80, 444, 5432, 6379, 8000, 65_535):
            outcome = sender.send(f"https://receiver.example:{port}/", {}, b"{}")
            assert isinstance(outcome, Failed), port
            assert outcome.reason == "forbidden_address", port
    assert connections == []


def test_one_forbidden_address_of_a_name_refuses_all_of_them(connections: list[str]) -> None:
    for found in ([PUBLIC, "127.0.0.1"], ["127.0.0.1", PUBLIC], [PUBLIC] * 5 + ["fd00::1"]):
        with Sender(IMPATIENT, lookup=partial(lambda found, name: found, found)) as sender:
            outcome = sender.send("https://receiver.example/", {}, b"{}")
        assert isinstance(outcome, Failed)
        assert outcome.reason == "resolution"
    assert connections == []


def test_the_error_does_not_tell_whether_a_private_name_exists(connections: list[str]) -> None:
    """Whoever may submit jobs could else ask for the names of the network, one after the other."""

    def lookup(name: str) -> list[str]:
        if name == "nobody.example":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return {"inside.example": ["10.0.0.1"], "both.example": [PUBLIC, "fd00::1"]}.get(name, [])

    told: set[tuple[str, str]] = set()
    for networks in ((), (ip_network("127.0.0.0/8"),)):
        settings = IMPATIENT.model_copy(update={"webhook_allowed_networks": networks})
        with Sender(settings, lookup) as sender:
            for name in ("nobody.example", "empty.example", "inside.example", "both.example"):
                outcome = sender.send(f"https://{name}/", {}, b"{}")
                assert isinstance(outcome, Failed)
                told.add((outcome.reason, outcome.detail))
    assert told == {("resolution", "the host's name has no address that webhooks go to")}
    assert connections == []


def test_a_name_is_looked_up_only_once_per_request(connections: list[str]) -> None:
    """The first answer is checked and passes, and any later one would be loopback."""
    answers = iter([PUBLIC, "127.0.0.1", "127.0.0.1"])
    with Sender(IMPATIENT, lookup=lambda name: [next(answers)]) as sender:
        outcome = sender.send("https://receiver.example/", {}, b"{}")
    assert isinstance(outcome, Failed)
    assert connections == [PUBLIC]
    assert next(answers) == "127.0.0.1", "there was no second look-up"


def test_the_connection_goes_to_the_address_that_was_checked(inside: Receiver) -> None:
    """The same with somebody who answers: only 127.0.0.2 is open, and the name is rebound to 127.0.0.1 in between."""
    settings = WebhookSettings(webhook_allowed_networks=(ip_network("127.0.0.2/32"),))
    answers = ["127.0.0.2"]

    def lookup(name: str) -> list[str]:
        return [answers.pop(0) if answers else "127.0.0.1"]

    with Receiver(status(200, body=b"open"), host="127.0.0.2", port=inside.port) as outside:
        with Sender(settings, lookup) as sender:
            first = sender.send(outside.url("receiver.example"), {}, b"{}")
            second = sender.send(outside.url("receiver.example"), {}, b"{}")
        assert isinstance(first, Sent)
        assert first.body_start == "open"
        assert isinstance(second, Failed), "each send is checked anew, and no connection is kept for it"
        assert second.reason == "resolution"
        assert outside.accepted == 1
    assert inside.accepted == 0


def test_a_redirect_into_a_private_network_is_not_followed(inside: Receiver) -> None:
    settings = WebhookSettings(webhook_allowed_networks=(ip_network("127.0.0.2/32"),))
    with (
        Receiver(status(307, f"Location: {inside.url()}"), host="127.0.0.2") as outside,
        Sender(settings) as sender,
    ):
        outcome = sender.send(outside.url("127.0.0.2"), {}, b"{}")
    assert isinstance(outcome, Failed)
    assert outcome.reason == "redirect"
    assert inside.accepted == 0


def test_proxies_and_passwords_of_the_environment_are_not_used(
    inside: Receiver, connections: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only connections of this thread count, for threads of other tests may see the environment too."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, inside.url())
    netrc = tmp_path / "netrc"
    netrc.write_text("default login scoreline password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    settings = WebhookSettings(webhook_allowed_networks=(ip_network("127.0.0.2/32"),))
    with Receiver(status(200), host="127.0.0.2") as outside:
        with Sender(settings) as sender:
            outcome = sender.send(outside.url("127.0.0.2"), {}, b"{}")
        assert isinstance(outcome, Sent)
        assert b"authorization" not in outside.requests[0].lower()
    assert connections == ["127.0.0.2"]


def test_cookies_are_not_sent_back(inside: Receiver) -> None:
    """A cookie, for one: receivers of all tenants may share a host's name."""
    settings = WebhookSettings(webhook_allowed_networks=(ip_network("127.0.0.0/8"),))
    with Receiver(status(200, "Set-Cookie: session=1; Path=/")) as receiver, Sender(settings) as sender:
        for _ in range(2):
            assert isinstance(sender.send(receiver.url(), {}, b"{}"), Sent)
        assert len(receiver.requests) == 2
        assert b"cookie" not in receiver.requests[1].lower()


def test_allowed_networks_can_be_reached_and_others_can_not(inside: Receiver, connections: list[str]) -> None:
    settings = WebhookSettings(webhook_allowed_networks=(ip_network("127.0.0.1/32"), ip_network("::1/128")))
    with Sender(settings) as sender:
        outcome = sender.send(inside.url("localhost"), {}, b"{}")
        assert isinstance(outcome, Sent)
        assert outcome.body_start == "the crown jewels"
        assert set(connections) <= {"127.0.0.1", "::1"}
        connections.clear()
        for url in ("https://10.0.0.1/", "https://127.0.0.2/", f"http://{PUBLIC}/"):
            assert isinstance(sender.send(url, {}, b"{}"), Failed)
        assert connections == []
