"""Sockets of one port for several processes: each process listens on sockets of its own (``SO_REUSEPORT``).

The kernel spreads new connections evenly over the sockets that listen. With one socket for all, whichever process is
first takes a whole burst of connections, and keeps them.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class PortError(Exception):
    """Why a port can't be used, in one line."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a host's name with a port, bound by sockets on which nobody listens. So the port stays taken
    while processes come and go.
    """

    reservations: Sequence[socket.socket]

    def sockets(self) -> list[socket.socket]:
        """Return further sockets with these addresses, for one process."""
        return [_bind(one.family, one.getsockname(), shared=True) for one in self.reservations]

    @property
    def port(self) -> int:
        """The port; the first one, if 0 was asked for and the name has several addresses."""
        return int(self.reservations[0].getsockname()[1])

    def close(self) -> None:
        """Give the port back."""
        for one in self.reservations:
            one.close()


def reserve(host: str, port: int) -> Addresses:
    """Reserve a port on all addresses of a host's name. port: 0 for any free one. Raises PortError."""
    reservations: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, address in dict.fromkeys(found):
            try:
                # Sockets that share a port would not mind another service that shares it too. This one does.
                _bind(family, address, shared=False).close()
                reservations.append(_bind(family, address, shared=True))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) or len(found) == 1:
                    raise
        if not reservations:
            raise OSError(errno.EADDRNOTAVAIL, "none of its addresses is one of this machine")
    except OSError as error:
        for one in reservations:
            one.close()
        raise PortError(
            f"{host} port {port} can't be used: {error.strerror or error}; name another address or port with "
            "SCORELINE_HOST and SCORELINE_PORT, or with --host and --port"
        ) from error
    return Addresses(reservations)


def _bind(family: int, address: Any, *, shared: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
