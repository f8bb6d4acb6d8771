"""The switch: ``python -m tests.network.switch DEVICE...``. It passes packets on between devices, with faults.

A line on its input has a list of links as JSON, one for each device, and is answered with a line.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import random
import select
import socket
import sys
import time

from tests.network.hosts import Link

ALL_PROTOCOLS = 0x0003
MOST_BYTES = 65_536
BROADCAST = b"\xff" * 6


class Switch:
    """Sends each packet to the device behind which its receiver is, or to all others."""

    def __init__(self, devices: list[str]) -> None:
        self._ports: list[socket.socket] = []
        for device in devices:
            port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
            port.bind((device, 0))
            port.setblocking(False)
            self._ports.append(port)
        self._links = [Link()] * len(devices)
        self._port_of: dict[bytes, int] = {}  # by hardware address
        self._later: list[tuple[float, int, int, bytes]] = []  # when to send, order, port, packet
        self._order = itertools.count()
        self._chance = random.Random(1)

    def run(self) -> None:
        """Pass packets on until the input ends."""
        print("ready", flush=True)
        readers: dict[object, int] = {port: number for number, port in enumerate(self._ports)}
        while True:
            wait = max(0.0, self._later[0][0] - time.monotonic()) if self._later else None
            readable, _, _ = select.select([sys.stdin, *self._ports], [], [], wait)
            for one in readable:
                if one in readers:
                    self._receive(readers[one])
                elif line := sys.stdin.readline():
                    self._links = [Link(**link) for link in json.loads(line)]
                    print("changed", flush=True)
                else:
                    return
            while self._later and self._later[0][0] <= time.monotonic():
                _, _, port, packet = heapq.heappop(self._later)
                self._send(port, packet)

    def _receive(self, source: int) -> None:
        for _ in range(64):
            try:
                packet, address = self._ports[source].recvfrom(MOST_BYTES)
            except OSError:  # there is no packet, or the device is down
                return
            if address[2] == socket.PACKET_OUTGOING or self._is_lost(self._links[source]):
                continue
            receiver, sender = packet[:6], packet[6:12]
            self._port_of[sender] = source
            known = None if receiver == BROADCAST else self._port_of.get(receiver)
            for target in range(len(self._ports)) if known is None else (known,):
                if target != source and not self._is_lost(self._links[target]):
                    self._pass_on(target, packet, self._links[source].delay_seconds + self._links[target].delay_seconds)

    def _pass_on(self, target: int, packet: bytes, delay: float) -> None:
        if delay > 0:
            heapq.heappush(self._later, (time.monotonic() + delay, next(self._order), target, packet))
        else:
            self._send(target, packet)

    def _send(self, port: int, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # the device is down or its queue is full: the packet is lost
            self._ports[port].send(packet)

    def _is_lost(self, link: Link) -> bool:
        return link.cut or (link.loss > 0 and self._chance.random() < link.loss)


if __name__ == "__main__":
    Switch(sys.argv[1:]).run()
