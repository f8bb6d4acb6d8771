"""What belongs to a connection is let go when it ends, without a collection of garbage."""

from __future__ import annotations

import gc
import socket
import struct
import weakref
from collections.abc import Callable, Iterator

import pytest

from api.server.connection import Connection
from tests.api.server.raw_client import RawClient, connection_of, head
from tests.api.serving import RunningApi, eventually

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Garbage in circles stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def ask(client: RawClient) -> None:
    client.send(head())
    assert client.answer().status == 200


def break_off(client: RawClient) -> None:
    client.send(head("content-length: 100", "content-type: application/json", line="POST /v1/score HTTP/1.1"), b"{")


def send_two_and_leave(client: RawClient) -> None:
    client.send(head("content-length: 100", line="POST /v1/score HTTP/1.1"), b"{" * 100, head())


def be_refused(client: RawClient) -> None:
    client.send(b"nonsense\r\n\r\n")
    assert client.answer().status == 400
    assert client.is_closed()


def reset(client: RawClient) -> None:
    ask(client)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("use", [ask, break_off, send_two_and_leave, be_refused, reset])
def test_a_closed_connection_leaves_nothing_to_collect(api: RunningApi, use: Callable[[RawClient], None]) -> None:
    with RawClient(api) as client:
        known = weakref.ref[Connection](connection_of(api, client))
        use(client)
    eventually(lambda: known() is None, "the connection is let go")
