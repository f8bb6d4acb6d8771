"""The bell of embedded mode, on real sockets."""

from __future__ import annotations

import contextlib
import socket
import stat
import time
from functools import partial
from pathlib import Path

import pytest

from bell.local import LocalBell, LocalHub
from bell.local_member import LocalMember
from tests.bell.hearing import Heard, listening, noticing, wait_until


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "bell")


def test_a_ring_reaches_the_workers_of_the_model(path: str) -> None:
    api, demo, other = Heard(), Heard(), Heard()
    hub = LocalHub(path)
    demo_bell, other_bell = LocalBell(path, ["demo"], demo.ring), LocalBell(path, ["other"], other.ring)
    with noticing(hub, api), listening(demo_bell), listening(other_bell):
        wait_until(lambda: demo.rings and other.rings, "both are connected, which counts as a ring")
        hub.ring("demo")
        hub.ring("other")
        hub.ring("demo")
        wait_until(lambda: len(demo.rings) == 3 and len(other.rings) == 2, "each hears its own")


def test_a_worker_rings_the_other_workers(path: str) -> None:
    api, first, second = Heard(), Heard(), Heard()
    ringing = LocalBell(path, ["demo"], first.ring)
    with noticing(LocalHub(path), api), listening(ringing), listening(LocalBell(path, ["demo"], second.ring)):
        wait_until(lambda: first.rings and second.rings, "both are connected")
        ringing.ring("demo")
        wait_until(lambda: len(second.rings) == 2, "the other one hears it")


def test_announcements_from_workers_and_from_the_api_itself_are_heard(path: str) -> None:
    api, worker = Heard(), Heard()
    hub, bell = LocalHub(path), LocalBell(path, ["demo"], worker.ring)
    many = [f"job_{n:036d}" for n in range(5_000)]
    with noticing(hub, api), listening(bell):
        wait_until(lambda: worker.rings, "the worker is connected")
        bell.announce(many)
        hub.announce(["job_cancelled"])
        wait_until(lambda: len(api.ended) == len(many) + 1, "all are noticed")
    assert set(api.ended) == {*many, "job_cancelled"}


def test_several_api_processes_ring_the_workers_and_hear_what_ends(path: str) -> None:
    parent, one, other, worker = Heard(), Heard(), Heard(), Heard()
    members = [LocalMember(path) for _ in range(2)]
    bell = LocalBell(path, ["demo"], worker.ring)
    many = [f"job_{n:036d}" for n in range(5_000)]
    with noticing(members[0], one), noticing(LocalHub(path), parent), noticing(members[1], other), listening(bell):
        wait_until(lambda: worker.rings, "the worker is connected")

        def all_hear(job_id: str) -> bool:
            members[0].announce([job_id])
            return job_id in one.ended and job_id in other.ended

        wait_until(lambda: all_hear("job_cancelled"), "both are connected, the one that waited for the socket as well")
        rings = len(worker.rings)
        members[1].ring("demo")
        wait_until(lambda: len(worker.rings) == rings + 1, "the worker hears it")
        bell.announce(many)
        wait_until(lambda: all({*many} <= {*heard.ended} for heard in (one, other)), "both hear all")
        assert len(worker.rings) == rings + 1, "an end is no ring"


def test_an_api_process_that_reads_nothing_delays_nobody(path: str) -> None:
    api, worker = Heard(), Heard()
    bell = LocalBell(path, ["demo"], worker.ring)
    member = LocalMember(path)
    with noticing(LocalHub(path), Heard()), noticing(member, api), listening(bell):
        wait_until(lambda: worker.rings, "the socket is served")
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.connect(path)
            deaf.sendall(b'{"hear": "ended"}\n')
            for number in range(3_000):
                bell.announce([f"job_{number}_{n:036d}" for n in range(20)])
            wait_until(lambda: f"job_2999_{19:036d}" in api.ended, "the other one hears the last")


def test_results_are_heard_with_their_jobs_by_all_api_processes(path: str) -> None:
    parent, child, worker = Heard(), Heard(), Heard()
    hub, member, bell = LocalHub(path), LocalMember(path), LocalBell(path, ["demo"], worker.ring)
    results = {f"job_{n}": f"result {n} " + "r" * 5_000 for n in range(100)}

    def child_hears() -> bool:
        member.announce(["job_of_child"], {"job_of_child": "result"})
        return "job_of_child" in child.ended

    with noticing(hub, parent), noticing(member, child), listening(bell):
        wait_until(lambda: worker.rings, "the worker is connected")
        wait_until(child_hears, "the child is connected")
        bell.announce([*results, "job_without"], results)
        wait_until(lambda: "job_without" in parent.ended and "job_without" in child.ended, "all are noticed")
        hub.announce(["job_here"], {"job_here": "result"})
        wait_until(lambda: "job_here" in parent.ended, "the parent hears itself")
    assert worker.rings == ["ring"], "one connection was enough"
    results["job_of_child"] = "result"
    assert child.results == results
    assert parent.results == results | {"job_here": "result"}


@pytest.mark.parametrize(
    "line",
    [b"", b"\xff", b"{", b"7", b"[1]", b'{"ended": 7}', b"[" * 60_000, b"7" * 200_000],
    ids=lambda line: line[:9],
)
def test_a_line_that_can_not_be_read_costs_its_sender_the_connection_and_nobody_else(path: str, line: bytes) -> None:
    api, worker = Heard(), Heard()
    bell = LocalBell(path, ["demo"], worker.ring)
    with noticing(LocalHub(path), api), listening(bell), socket.socket(socket.AF_UNIX) as broken:
        wait_until(lambda: worker.rings, "the worker is connected")
        broken.connect(path)
        broken.settimeout(10)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            broken.sendall(line + b"\n")
            while broken.recv(4096):
                pass
        bell.announce(["job_1"])
        wait_until(lambda: api.ended == ["job_1"], "the worker is still heard")
    assert worker.rings == ["ring"]


def test_a_worker_connects_when_the_api_starts_and_again_after_its_restart(path: str) -> None:
    worker = Heard()
    with listening(LocalBell(path, ["demo"], worker.ring)) as started:
        assert started.wait(5), "the worker waits for the API"
        assert worker.rings == []
        for lives in (1, 2):
            api = Heard()
            with noticing(LocalHub(path), api):
                wait_until(partial(lambda lives: len(worker.rings) == lives, lives), "the worker is connected")


def test_a_socket_left_behind_by_a_crash_is_replaced(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)
    api, worker = Heard(), Heard()
    with noticing(LocalHub(path), api), listening(LocalBell(path, ["demo"], worker.ring)):
        wait_until(lambda: worker.rings, "the worker is connected")


def test_only_its_owner_may_use_the_socket_and_it_is_removed_at_the_end(path: str) -> None:
    with noticing(LocalHub(path), Heard()):
        wait_until(lambda: Path(path).exists() and stat.S_IMODE(Path(path).stat().st_mode) == 0o600, "it is private")
    assert not Path(path).exists()


def test_without_an_api_or_workers_no_method_raises_or_waits(path: str) -> None:
    started = time.monotonic()
    hub, bell = LocalHub(path), LocalBell(path, ["demo"], lambda: None)
    for end in (hub, bell, LocalMember(path)):
        end.ring("demo")
        end.announce(["job_1"])
        end.close()
    assert time.monotonic() - started < 1.0


def test_a_worker_that_reads_nothing_delays_nobody(path: str) -> None:
    api, worker = Heard(), Heard()
    hub = LocalHub(path)
    with noticing(hub, api), listening(LocalBell(path, ["demo"], worker.ring)), socket.socket(socket.AF_UNIX) as deaf:

        def connected() -> bool:
            with contextlib.suppress(OSError):
                deaf.connect(path)
                return True
            return False

        wait_until(connected, "the deaf one is connected")
        rings = 100_000
        for _ in range(rings):
            hub.ring("demo")
        before = len(worker.rings)
        hub.ring("demo")
        wait_until(lambda: len(worker.rings) > before, "the other one hears still")
        # What was kept for the deaf one is what the kernel keeps, not all of it.
        deaf.settimeout(1.0)
        heard = 0
        with contextlib.suppress(TimeoutError):
            while received := deaf.recv(1 << 20):
                heard += received.count(b"ring")
        assert 0 < heard < rings / 2


def test_an_api_that_reads_nothing_delays_a_worker_by_a_second_at_most(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as frozen_api:
        frozen_api.bind(path)
        frozen_api.listen()
        worker = Heard()
        bell = LocalBell(path, ["demo"], worker.ring)
        with listening(bell), frozen_api.accept()[0] as connection:
            connection.sendall(b'{"welcome": true}\n')
            wait_until(lambda: worker.rings, "the worker is connected")
            started = time.monotonic()
            for _ in range(40):
                bell.announce([f"job_{n:032d}" for n in range(500)])
                if time.monotonic() - started > 0.4:
                    break
            assert time.monotonic() - started < 1.0
