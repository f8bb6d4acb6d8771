"""Looking up names with limits on time and number, and trying the addresses of a name in turn."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

import webhooks.resolving
from tests.services import wait_until
from tests.webhooks.receivers import Receiver, status
from tests.webhooks.senders import BODY, HEADERS, IMPATIENT, MANY_SECONDS, OPENED
from webhooks.resolving import MAX_LOOKUPS, BusyError, ResolutionError, Resolver
from webhooks.sending import Failed, Sender, Sent


def no_thread(thread: threading.Thread) -> None:
    """What the system says when it has no more."""
    raise RuntimeError("can't start new thread")


def test_a_name_without_an_address_is_a_resolution_failure() -> None:
    with Sender(OPENED) as sender:
        outcome = sender.send("https://receiver.invalid/", HEADERS, BODY)
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.detail) == ("resolution", "the host's name has no address that webhooks go to")


@pytest.mark.parametrize("name", ["0xn--_.example", "xn--a.example", "xn--zzzzz.example", "a_b.example"])
def test_a_name_with_an_unusual_form_is_sent_to_as_it_is_written(name: str) -> None:
    with Receiver(status(200)) as receiver, Sender(OPENED, lookup=lambda name: ["127.0.0.1"]) as sender:
        outcome = sender.send(receiver.url(name), HEADERS, BODY)
    assert isinstance(outcome, Sent)
    assert f"host: {name}:{receiver.port}".encode() in receiver.requests[0].lower()


def test_an_empty_list_of_addresses_is_a_resolution_failure() -> None:
    with Sender(OPENED, lookup=lambda name: []) as sender:
        outcome = sender.send("https://receiver.example/", HEADERS, BODY)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "resolution"


def test_a_lookup_that_hangs_times_out_and_occupies_its_slot_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up, its place stays taken until it ends, and then it is free again."""
    monkeypatch.setattr(webhooks.resolving, "MAX_LOOKUPS", 1)
    answered = threading.Event()

    def lookup(name: str) -> list[str]:
        answered.wait(MANY_SECONDS)
        return ["127.0.0.1"]

    with Receiver(status(200)) as receiver, Sender(IMPATIENT, lookup) as sender:
        outcome = sender.send(receiver.url("receiver.example"), HEADERS, BODY)
        assert isinstance(outcome, Failed)
        assert (outcome.reason, outcome.detail) == ("timeout", "the look-up of the host's name took too long")
        assert 0.4 <= outcome.seconds < MANY_SECONDS
        outcome = sender.send(receiver.url("other.example"), HEADERS, BODY)
        assert isinstance(outcome, Failed)
        assert (outcome.reason, outcome.detail) == ("busy", "too many names are being looked up")
        assert receiver.accepted == 0
        answered.set()
        wait_until(
            lambda: isinstance(sender.send(receiver.url("receiver.example"), HEADERS, BODY), Sent),
            "it is looked up",
        )


def test_names_of_one_owner_that_hang_leave_lookups_to_other_owners() -> None:
    answered = threading.Event()
    hanging: list[str] = []

    def lookup(name: str) -> list[str]:
        if name.startswith("slow"):
            hanging.append(name)
            answered.wait(MANY_SECONDS)
        return ["127.0.0.1"]

    resolver = Resolver(lookup)

    def look_up(name: str, owner: str) -> None:
        with suppress(ResolutionError, TimeoutError):
            resolver.resolve(name, MANY_SECONDS, owner)

    def fill(owner: str) -> int:
        """Look slow names up until the resolver refuses; return how many it took."""
        taken = len(hanging)
        refused = threading.Event()

        def try_to_look_up(name: str) -> None:
            try:
                look_up(name, owner)
            except BusyError:
                refused.set()

        while not refused.is_set():
            known = len(hanging)
            threading.Thread(target=try_to_look_up, args=(f"slow{known}",), daemon=True).start()
            while len(hanging) == known and not refused.wait(0.001):
                pass
        return len(hanging) - taken

    shares = [fill(owner) for owner in ("first", "second", "third")]
    assert shares == [MAX_LOOKUPS // 2, MAX_LOOKUPS // 4, MAX_LOOKUPS // 8]
    assert resolver.resolve("quick", MANY_SECONDS, "fourth") == ["127.0.0.1"]
    answered.set()

    def may_look_up_again() -> bool:
        with suppress(BusyError):
            return resolver.resolve("quick", MANY_SECONDS, "first") == ["127.0.0.1"]
        return False

    wait_until(may_look_up_again, "the first owner may look names up again")


def test_waiting_for_a_lookup_slot_is_shorter_than_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the names that hang would take the senders, too, and not only the places."""
    monkeypatch.setattr(webhooks.resolving, "MAX_LOOKUPS", 0)
    monkeypatch.setattr(webhooks.resolving, "MAX_WAIT_SECONDS", 0.1)
    patient = OPENED.model_copy(update={"webhook_timeout_seconds": 60.0, "webhook_connect_seconds": 60.0})
    with Sender(patient) as sender:
        outcome = sender.send("https://receiver.example/", HEADERS, BODY)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "busy"
    assert 0.1 <= outcome.seconds < MANY_SECONDS


def test_a_lookup_slot_is_freed_if_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks.resolving, "MAX_LOOKUPS", 1)
    with Receiver(status(200)) as receiver, Sender(OPENED, lookup=lambda name: ["127.0.0.1"]) as sender:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            outcome = sender.send(receiver.url("receiver.example"), HEADERS, BODY)
        assert isinstance(outcome, Failed)
        assert (outcome.reason, outcome.detail) == ("busy", "no thread could be started to look a name up")
        assert isinstance(sender.send(receiver.url("receiver.example"), HEADERS, BODY), Sent)


def test_the_next_address_is_tried_if_one_refuses() -> None:
    with (
        Receiver(status(200), host="127.0.0.3") as receiver,
        Sender(OPENED, lookup=lambda name: ["127.0.0.1", "127.0.0.2", "127.0.0.3"]) as sender,
    ):
        outcome = sender.send(receiver.url("receiver.example"), HEADERS, BODY)
    assert isinstance(outcome, Sent)
    assert outcome.status == 200


def test_the_number_of_addresses_tried_is_limited() -> None:
    many = [f"127.0.0.{last}" for last in range(10, 100)]
    with (
        Receiver(status(200), host="127.0.0.99") as receiver,
        Sender(OPENED, lookup=lambda name: many) as sender,
    ):
        outcome = sender.send(receiver.url("receiver.example"), HEADERS, BODY)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "connection"
    assert receiver.accepted == 0


def test_connecting_to_a_host_that_does_not_answer_times_out() -> None:
    """A listener whose queue is full leaves connections without an answer, as a firewall does."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        with Sender(IMPATIENT) as sender:
            outcome = sender.send(f"http://127.0.0.1:{port}/", HEADERS, BODY)
        for one in waiting:
            one.close()
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.detail) == ("timeout", "the host took too long to take the connection")
    assert 0.4 <= outcome.seconds < MANY_SECONDS
