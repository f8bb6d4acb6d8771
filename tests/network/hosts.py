"""Hosts of their own on one machine: network namespaces, joined by veth pairs and a switch. Needs Linux and root.

The switch is a process of this folder rather than a bridge of the kernel. So links can be delayed and lossy on kernels
without ``netem``, and a link can be cut without either side being told.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

NETWORK = "10.77.0"
NETWORK_RANGE = f"{NETWORK}.0/24"

_CLONE_NEWNET = 0x40000000
_SIOCETHTOOL = 0x8946
_TURN_OFF = (0x17, 0x1F, 0x24, 0x2C)
"""Checksums, segmentation and merging of packets by the device: the switch needs packets as they are on a wire."""


@dataclass(frozen=True, slots=True)
class Link:
    """How a host's link treats a packet, in each direction."""

    delay_seconds: float = 0.0
    loss: float = 0.0  # share of the packets that are lost
    cut: bool = False  # all packets are lost


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace with one link to the switch."""

    namespace: str
    device: str  # the switch's end of the link
    address: str

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Have this thread, and the processes that it starts, be on this host."""
        with open(f"/run/netns/{self.namespace}") as there, inside(there.fileno()):
            yield

    def enter(self) -> None:
        """Have this thread, and the threads and processes that it starts, be on this host for good."""
        with open(f"/run/netns/{self.namespace}") as there:
            _enter(there.fileno())


class Network:
    """Hosts and the switch between them, which are there inside this context."""

    def __init__(self, names: Sequence[str]) -> None:
        mark = f"sl{os.getpid() % 10_000}"
        self.hosts = {
            name: Host(f"{mark}-{name}", f"{mark}n{number}", f"{NETWORK}.{number}")
            for number, name in enumerate(names, start=1)
        }
        self._links = {name: Link() for name in names}
        self._home = open("/proc/thread-self/ns/net")  # noqa: SIM115 (closed at the end of the context)
        self._switch: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        try:
            for host in self.hosts.values():
                _make(host)
            devices = [host.device for host in self.hosts.values()]
            self._switch = subprocess.Popen(
                [sys.executable, "-m", "tests.network.switch", *devices],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self._switch.stdout is not None
            if not self._switch.stdout.readline():
                raise RuntimeError("the switch did not start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
        _enter(self._home.fileno())
        self._home.close()
        for host in self.hosts.values():
            subprocess.run(["ip", "link", "delete", host.device], check=False, stderr=subprocess.DEVNULL)
            subprocess.run(["ip", "netns", "delete", host.namespace], check=False, stderr=subprocess.DEVNULL)

    @contextmanager
    def changed(self, link: Link, names: Sequence[str]) -> Iterator[None]:
        """Have the links of some hosts be like this."""
        self._set(link, names)
        try:
            yield
        finally:
            self._set(Link(), names)

    @contextmanager
    def unplugged(self, names: Sequence[str]) -> Iterator[None]:
        """Take the links of some hosts down, which their kernels notice."""
        self._plug("down", names)
        try:
            yield
        finally:
            self._plug("up", names)

    def _plug(self, state: str, names: Sequence[str]) -> None:
        with inside(self._home.fileno()):
            for name in names:
                _ip("link", "set", self.hosts[name].device, state)

    def _set(self, link: Link, names: Sequence[str]) -> None:
        assert self._switch is not None
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        for name in names:
            self._links[name] = link
        self._switch.stdin.write(json.dumps([asdict(self._links[name]) for name in self.hosts]) + "\n")
        self._switch.stdin.flush()
        self._switch.stdout.readline()


def _make(host: Host) -> None:
    _ip("netns", "add", host.namespace)
    _ip("link", "add", host.device, "type", "veth", "peer", "name", "net", "netns", host.namespace)
    _ip("link", "set", host.device, "up")
    with host.inside():
        _ip("link", "set", "lo", "up")
        _ip("address", "add", f"{host.address}/24", "dev", "net")
        _ip("link", "set", "net", "up")
        _turn_off_offloading("net")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def inside(namespace: int) -> Iterator[None]:
    """Have this thread be in the network namespace of a file descriptor."""
    with open("/proc/thread-self/ns/net") as before:
        _enter(namespace)
        try:
            yield
        finally:
            _enter(before.fileno())


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "a network namespace can't be entered")


def _turn_off_offloading(device: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _TURN_OFF:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", device.encode(), ctypes.addressof(value))
            fcntl.ioctl(control, _SIOCETHTOOL, request)
