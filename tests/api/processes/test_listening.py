"""A port that several processes listen on."""

from __future__ import annotations

import socket

import pytest

from api.processes.listening import PortError, reserve


def test_each_process_gets_sockets_of_its_own_and_nobody_else_gets_the_port() -> None:
    addresses = reserve("127.0.0.1", 0)
    ours = [one for _ in range(2) for one in addresses.sockets()]
    assert {one.getsockname() for one in ours} == {("127.0.0.1", addresses.port)}
    for one in ours:
        one.listen()
    with pytest.raises(
        PortError, match=f"^127.0.0.1 port {addresses.port} can't be used: Address already in use; name"
    ):
        reserve("127.0.0.1", addresses.port)
    for one in ours:
        one.close()
    port = addresses.port
    addresses.close()
    socket.create_server(("127.0.0.1", port)).close()


def test_no_connection_is_made_before_a_process_listens() -> None:
    addresses = reserve("127.0.0.1", 0)
    (ours,) = addresses.sockets()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", addresses.port), 5.0)
    ours.listen()
    socket.create_connection(("127.0.0.1", addresses.port), 5.0).close()


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(PortError, match=r"^192\.0\.2\.1 port 0 can't be used: Cannot assign requested address; name"):
        reserve("192.0.2.1", 0)
