"""A request to change to another protocol is answered as if it had not asked, whatever body it has."""

from __future__ import annotations

import json

import pytest

from tests.api.server.raw_client import RawClient, head
from tests.api.serving import KEY, RunningApi

LINE = "POST /v1/tokenize HTTP/1.1"
HEADERS = [f"authorization: Bearer {KEY}", "content-type: application/json"]
BODY = json.dumps({"text": f"to be {head('x-request-id: smuggled').decode()} or not to be"}, indent=1).encode()
"""A body that looks like a request to who does not take it for the body."""

MIDDLE = len(BODY) // 2
CHUNKS = b"%x\r\n%b\r\n%x;a=b\r\n%b\r\n0\r\n" % (MIDDLE, BODY[:MIDDLE], len(BODY) - MIDDLE, BODY[MIDDLE:])
BODIES = {
    "with a length": head(f"content-length: {len(BODY)}", *HEADERS, line=LINE) + BODY,
    "in chunks": head("transfer-encoding: chunked", *HEADERS, line=LINE) + CHUNKS + b"\r\n",
    "in chunks with a trailer": head("transfer-encoding: chunked", *HEADERS, line=LINE)
    + CHUNKS
    + b"x: trailer\r\n\r\n",
    "that is empty": head("content-length: 0", *HEADERS, line=LINE),
    "that has no bytes": head("content-length: 00", *HEADERS, line=LINE),
    "that is missing": head(*HEADERS, line=LINE),
}
UPGRADES = {
    "h2c": "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n",
    "websocket": "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
}


@pytest.mark.parametrize("by_byte", [False, True], ids=["in one piece", "byte by byte"])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("protocol", UPGRADES)
def test_it_is_answered_as_if_it_had_not_asked(api: RunningApi, protocol: str, body: str, by_byte: bool) -> None:
    plain = BODIES[body]
    asking = plain.replace(b"\r\n", f"\r\n{UPGRADES[protocol]}".encode(), 1)
    following = head("x-request-id: next")
    with RawClient(api) as client:
        client.send(plain)
        expected = client.answer()
        for _ in range(2):
            sent = asking + following
            for piece in [bytes([byte]) for byte in sent] if by_byte else [sent]:
                client.send(piece)
            answer = client.answer()
            assert (answer.status, without_id(answer.body)) == (expected.status, without_id(expected.body))
            assert client.answer().headers["x-request-id"] == "next"
    assert (expected.status == 200) == (b"to be" in plain)


def without_id(body: bytes) -> object:
    """Return an answer without its id."""
    return {name: value for name, value in json.loads(body).items() if name != "id"}


def test_its_client_is_told_to_go_on_when_its_body_is_wanted(api: RunningApi) -> None:
    with RawClient(api) as client:
        asking = head("expect: 100-continue", f"content-length: {len(BODY)}", *HEADERS, line=LINE)
        client.send(asking.replace(b"\r\n", f"\r\n{UPGRADES['h2c']}".encode(), 1))
        assert client.answer().status == 100
        client.send(BODY)
        assert client.answer().status == 200


def test_its_connection_is_closed_if_the_client_asks_for_that(api: RunningApi) -> None:
    with RawClient(api) as client:
        asking = head(f"content-length: {len(BODY)}", *HEADERS, line=LINE)
        closing = UPGRADES["h2c"].replace("connection: ", "connection: close, ")
        client.send(asking.replace(b"\r\n", f"\r\n{closing}".encode(), 1) + BODY)
        assert client.answer().status == 200
        assert client.is_closed()
