"""The result of sending a webhook, whatever its receiver does. Uses real sockets; nothing may raise."""

from __future__ import annotations

import gzip
import math
import socket
import threading
from email.utils import formatdate
from time import time, tzset

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from settings.webhooks import WebhookSettings
from tests.services import free_port
from tests.webhooks.receivers import Endless, Receiver, Script, answering, dribbling, hang, status
from tests.webhooks.senders import BODY, HEADERS, IMPATIENT, MANY_SECONDS, OPENED
from webhooks.sending import Failed, Sender, Sent


def deliver(receiver: Receiver, settings: WebhookSettings = OPENED) -> Sent | Failed:
    with Sender(settings) as sender:
        return sender.send(receiver.url(), HEADERS, BODY)


def test_a_webhook_is_sent_as_it_was_signed() -> None:
    with Receiver(status(204)) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Sent)
    assert (outcome.status, outcome.body_start, outcome.retry_after, outcome.cut) == (204, "", None, None)
    assert 0 < outcome.seconds < MANY_SECONDS
    [request] = receiver.requests
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /hook?from=scoreline HTTP/1.1"
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    assert headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "user-agent": "scoreline-webhooks",
        "accept": "*/*",
        "accept-encoding": "identity",
        "connection": "close",
        "content-type": "application/json",
        "webhook-id": "msg_1",
        "content-length": str(len(BODY)),
    }
    assert body == BODY


@pytest.mark.parametrize("code", [200, 299, 400, 404, 410, 429, 500, 503, 599])
def test_a_response_with_any_status_is_returned(code: int) -> None:
    with Receiver(status(code, body=b"so it is")) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Sent)
    assert (outcome.status, outcome.body_start) == (code, "so it is")


def test_informational_responses_are_skipped() -> None:
    answer = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    )
    with Receiver(answering(answer)) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Sent)
    assert outcome.status == 200


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        ("0", 0, 0),
        ("120", 120, 120),
        ("86401", 86_401, 86_401),
        pytest.param("9" * 400, 1e19, 1e21, id="a number beyond any"),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 -0000", 0, 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 1e11, 1e12),
        pytest.param(formatdate(time() + 3_000, usegmt=True), 1_000, 3_001, id="a date to come"),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, least: float, most: float) -> None:
    with Receiver(status(429, f"Retry-After: {value}")) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Sent)
    assert outcome.status == 429
    assert outcome.retry_after is not None
    assert least <= outcome.retry_after <= most


def test_a_date_without_a_zone_is_in_utc_wherever_the_service_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    value = formatdate(time() + 3_000)
    assert value.endswith("-0000")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    tzset()
    try:
        with Receiver(status(503, f"Retry-After: {value}")) as receiver:
            outcome = deliver(receiver)
    finally:
        monkeypatch.undo()
        tzset()
    assert isinstance(outcome, Sent)
    assert outcome.retry_after is not None
    assert 1_000 <= outcome.retry_after <= 3_001


@pytest.mark.parametrize(
    "value",
    [
        *("", "soon", "-5", "1.5", "5 s", "Wed, 99 Oct 2015 07:28:00 GMT", "Oct", "\xb2"),
        "Mon, 01 Jan 99999999999 00:00:00 GMT",
        "Mon, 01 Jan 2026 00:00:00 +99999999999999",
        "Fri, 31 Dec 9999 23:59:59 -9999",
    ],
)
def test_an_invalid_retry_after_is_ignored(value: str) -> None:
    answer = f"HTTP/1.1 503 No\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n".encode("latin-1")
    with Receiver(answering(answer)) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Sent)
    assert outcome.retry_after is None


@pytest.mark.parametrize("code", [300, 301, 302, 303, 304, 307, 308, 399])
def test_a_redirect_is_a_failure_and_is_not_followed(code: int) -> None:
    with Receiver(status(200)) as elsewhere, Receiver(status(code, f"Location: {elsewhere.url()}")) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "redirect"
    assert outcome.detail == f"redirects are not followed: {code} to {elsewhere.url()}"
    assert elsewhere.accepted == 0


def test_a_redirect_to_a_metadata_service_is_a_failure_like_any_other() -> None:
    with Receiver(status(302, "Location: http://169.254.169.254/latest/meta-data/")) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "redirect"
    assert receiver.accepted == 1


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(hang, id="hangs"),
        pytest.param(dribbling(b""), id="dribbles a status line"),
        pytest.param(dribbling(b"HTTP/1.1 200 OK\r\nX-Long: "), id="dribbles a header"),
        pytest.param(
            lambda connection: Endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n")(connection),
            id="never comes to its answer",
        ),
    ],
)
def test_a_receiver_that_does_not_answer_is_cut_off_in_time(script: Script) -> None:
    settings = IMPATIENT.model_copy(update={"webhook_max_response_bytes": 2**40})
    with Receiver(script) as receiver:
        outcome = deliver(receiver, settings)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "timeout"
    assert 0.5 <= outcome.seconds < MANY_SECONDS


@pytest.mark.parametrize("framing", ["", "Content-Length: 1000000\r\n"])
def test_a_body_that_dribbles_is_cut_off_in_time_and_its_status_counts(framing: str) -> None:
    with Receiver(dribbling(f"HTTP/1.1 200 OK\r\n{framing}\r\nstart".encode())) as receiver:
        outcome = deliver(receiver, IMPATIENT)
    assert isinstance(outcome, Sent)
    assert (outcome.status, outcome.cut) == (200, "timeout")
    assert outcome.body_start.startswith("startx")
    assert 0.5 <= outcome.seconds < MANY_SECONDS


def test_a_receiver_that_does_not_read_is_cut_off_in_time() -> None:
    stopped = threading.Event()

    def stare(connection: socket.socket) -> None:
        stopped.wait(MANY_SECONDS)

    with Receiver(stare, reads=False) as receiver, Sender(IMPATIENT) as sender:
        outcome = sender.send(receiver.url(), HEADERS, bytes(2**26))
        stopped.set()
    assert isinstance(outcome, Failed)
    assert outcome.reason == "timeout"
    assert 0.5 <= outcome.seconds < MANY_SECONDS


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n", b"x" * 65_536),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65_536 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 10_000),
    ],
)
def test_only_the_start_of_a_huge_body_is_read_and_its_status_counts(start: bytes, more: bytes) -> None:
    endless = Endless(start, more)
    with Receiver(endless) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Sent)
    assert (outcome.status, outcome.cut, outcome.body_start) == (200, "too_large", "x" * 1_024)
    assert outcome.seconds < MANY_SECONDS
    assert endless.sent < 2**26, "what fits into the sockets' buffers"


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x" * 65_536),
        (b"HTTP/1.1 200 OK\r\n", b"X-More: x\r\n" * 5_000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000),
    ],
)
def test_endless_headers_are_cut_off(start: bytes, more: bytes) -> None:
    endless = Endless(start, more)
    with Receiver(endless) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "too_large"
    assert endless.sent < 2**26


def test_a_compressed_body_is_not_decompressed() -> None:
    packed = gzip.compress(b"a" * 2**24)
    with Receiver(status(200, "Content-Encoding: gzip", body=packed)) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Sent)
    assert outcome.status == 200
    assert len(outcome.body_start.encode()) <= 1_024
    assert "aaaa" not in outcome.body_start


@pytest.mark.parametrize(
    "body", [b"\x00\x1b[31m\xff" * 300, "é".encode() * 1_000, b"a" + "€".encode() * 1_000, b"line\r\nline\n"]
)
def test_the_start_of_an_answer_can_be_stored_and_shown_anywhere(body: bytes) -> None:
    with Receiver(status(500, body=body)) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Sent)
    assert 0 < len(outcome.body_start.encode()) <= 1_024
    assert all(character.isprintable() or character == "\n" for character in outcome.body_start)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"])
def test_a_connection_that_ends_before_the_answer_is_a_failure(start: bytes) -> None:
    with Receiver(answering(start)) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.detail) == (
        "connection",
        "the host closed the connection before the end of its response",
    )


@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_an_answer_whose_connection_ends_within_its_body_counts(framing: str) -> None:
    start = b"3e8\r\nha" if "chunked" in framing else b"ha"
    with Receiver(answering(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode() + start)) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Sent)
    assert (outcome.status, outcome.body_start, outcome.cut) == (200, "ha", "connection")


def test_a_connection_that_is_reset_is_a_failure() -> None:
    def reset(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        connection.close()

    with Receiver(reset) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "connection"


def test_a_response_sent_before_the_request_was_read_counts() -> None:
    """The rest of the request can't be sent any more; what was said before is there to be read."""

    with Receiver(status(413), reads=False) as receiver, Sender(OPENED) as sender:
        outcome = sender.send(receiver.url(), HEADERS, bytes(2**26))
    assert isinstance(outcome, Sent)
    assert outcome.status == 413


def test_a_refused_connection_is_a_failure() -> None:
    with Sender(OPENED) as sender:
        outcome = sender.send(f"http://127.0.0.1:{free_port()}/", HEADERS, BODY)
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.detail) == (
        "connection",
        "the host did not take the connection: Connection refused",
    )


@pytest.mark.parametrize(
    "answer",
    [
        b"220 mail.example ESMTP\r\n\r\n",
        b"HTTP/9 whatever\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n no: header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: magic\r\n\r\n",
    ],
)
def test_a_response_that_is_not_http_is_a_failure(answer: bytes) -> None:
    with Receiver(answering(answer)) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "bad_response"


@pytest.mark.parametrize(
    ("start", "reason"), [(b"HTTP/1.1 302 Found\r\nLocation: /", "redirect"), (b"220 \x1b[31m", "bad_response")]
)
def test_what_is_quoted_of_a_receiver_is_short_and_can_be_shown_anywhere(start: bytes, reason: str) -> None:
    with Receiver(answering(start + "é\x9b".encode() * 10_000 + b"\r\n\r\n")) as receiver:
        outcome = deliver(receiver)
    assert isinstance(outcome, Failed)
    assert outcome.reason == reason
    assert 1_000 < len(outcome.detail.encode()) <= 1_024
    assert outcome.detail.isprintable()


STARTS = st.sampled_from([b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 302 Found\r\nLocation: "])
FRAGMENTS = st.sampled_from(
    [
        b"\r\n",
        b"\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\n",
        b"Retry-After: ",
        b"5\r\n",
        b"\x00",
    ]
)


FUZZED = Sender(OPENED)


@hypothesis_settings(max_examples=150)
@given(start=STARTS, rest=st.lists(st.one_of(st.binary(max_size=20), FRAGMENTS), max_size=8).map(b"".join))
def test_no_response_makes_the_sender_raise(start: bytes, rest: bytes) -> None:
    with Receiver(answering(start + rest)) as receiver:
        outcome = FUZZED.send(receiver.url(), HEADERS, BODY)
    assert isinstance(outcome, Sent | Failed)


NUMBERS = st.from_regex(r"[0-9]{1,20}", fullmatch=True)
DATES = st.builds(
    "{}, {} {} {} {}:{}:00 {}".format,
    st.sampled_from(["Mon", "Monday", ""]),
    st.one_of(st.integers(0, 32), NUMBERS),
    st.sampled_from(["Jan", "Dec", "13"]),
    st.one_of(st.sampled_from(["1", "99", "1970", "2026", "9999"]), NUMBERS),
    st.one_of(st.integers(0, 25), NUMBERS),
    st.one_of(st.integers(0, 61), NUMBERS),
    st.one_of(st.sampled_from(["GMT", "", "-0000"]), st.builds("{}{}".format, st.sampled_from("+-"), NUMBERS)),
)


@hypothesis_settings(max_examples=300)
@given(value=st.one_of(DATES, NUMBERS, st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=40)))
def test_no_retry_after_makes_the_sender_raise(value: str) -> None:
    answer = f"HTTP/1.1 503 No\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n".encode("latin-1")
    with Receiver(answering(answer)) as receiver:
        outcome = FUZZED.send(receiver.url(), HEADERS, BODY)
    assert isinstance(outcome, Sent)
    assert outcome.retry_after is None or 0 <= outcome.retry_after < math.inf


def test_many_threads_share_a_sender() -> None:
    outcomes: list[Sent | Failed] = []
    with Receiver(status(200)) as receiver, Sender(OPENED) as sender:

        def send_some() -> None:
            outcomes.extend(sender.send(receiver.url(), HEADERS, BODY) for _ in range(10))

        threads = [threading.Thread(target=send_some) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [outcome.status for outcome in outcomes if isinstance(outcome, Sent)] == [200] * 80
    assert receiver.accepted == 80, "each request has a connection of its own"
