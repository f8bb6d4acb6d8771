"""Faults of a network, under load: ``python -m tests.network``. Needs Linux, root and iproute2.

The API, the workers, PostgreSQL and Redis are hosts of their own. Their links are cut, delayed and lossy, and
PostgreSQL and Redis are frozen. The table at the end says for each fault what clients were answered, how long the
slowest answer took, and how soon all of them succeeded again. The last line says what was lost. The exit status is 0 if
every request was answered in time, all clients recovered and nothing was lost; 1 if not; 2 if this machine has not what
it takes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tests.end_to_end.deployment import Running
from tests.faults.callers import CALL, LIST, LIVE, READY, TIMEOUT, Caller, Span, span
from tests.faults.deployment import FaultyDeployment, start_python
from tests.network.hosts import Host, Link, Network
from tests.services import PostgresServer, RedisServer, wait_until
from tests.soak.checker import Verdict, check
from tests.soak.clients import Client

ANSWER_SECONDS = 15.0  # what docs/guarantees.md promises with the default deadlines
RECOVERY_SECONDS = 30.0  # by then, all callers must have succeeded
REST_SECONDS = 3.0  # between two faults
SETTLE_SECONDS = 300.0

API, WORKERS, DATABASE, REDIS = HOSTS = ("api", "workers", "database", "redis")

Fault = Callable[[], AbstractContextManager[None]]

SETTINGS: dict[str, object] = {
    "lease_seconds": 10,
    "chunk_items": 8,
    "poll_seconds": 0.5,
    "sweep_seconds": 0.5,
    # An outage that is longer than a lease counts as the loss of every worker.
    "max_attempts": 1_000,
}


class SpreadDeployment(FaultyDeployment):
    """A deployment whose API and workers are on different hosts."""

    hosts: dict[str, Host]

    def _start(self, module: str, name: str, arguments: Sequence[str] = (), **environment: str) -> Running:
        with self.hosts[API if name == "api" else WORKERS].inside():
            return super()._start(module, name, arguments, **environment)

    def _launch(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Running:
        """Start Python itself: a forked process would be on the host that it is forked on."""
        return start_python(command, log, environment)


def faults(network: Network, postgres: PostgresServer, redis_server: RedisServer) -> dict[str, Fault]:
    """Return all faults by their names."""
    cut, far, lossy = Link(cut=True), Link(delay_seconds=0.05), Link(loss=0.1)
    far_and_lossy = Link(delay_seconds=0.02, loss=0.03)
    return {
        "PostgreSQL frozen": postgres.frozen,
        "Redis frozen": redis_server.frozen,
        "database cut off": lambda: network.changed(cut, [DATABASE]),
        "database unplugged": lambda: network.unplugged([DATABASE]),
        "Redis cut off": lambda: network.changed(cut, [REDIS]),
        "database and Redis cut off": lambda: network.changed(cut, [DATABASE, REDIS]),
        "workers cut off": lambda: network.changed(cut, [WORKERS]),
        "API cut off": lambda: network.changed(cut, [API]),
        "database 50 ms away": lambda: network.changed(far, [DATABASE]),
        "database behind 10 % loss": lambda: network.changed(lossy, [DATABASE]),
        "Redis behind 10 % loss": lambda: network.changed(lossy, [REDIS]),
        "all far and lossy": lambda: network.changed(far_and_lossy, HOSTS),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.network", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each fault lasts")
    parser.add_argument("--only", default="", help="only faults whose name contains this")
    options = parser.parse_args()
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("ip") is None:
        print("network namespaces take Linux, root and the program `ip` of iproute2", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="scoreline-network-"))
    started = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - started:7.1f} s  {what}", flush=True)

    say(f"logs in {folder}")
    with Network(HOSTS) as network:
        with network.hosts[DATABASE].inside():
            postgres = PostgresServer(network.hosts[DATABASE].address)
        with network.hosts[REDIS].inside():
            redis_server = RedisServer(network.hosts[REDIS].address)
        # The clients are on the host of the API, so that they reach it whatever happens to links.
        network.hosts[API].enter()
        chosen = {name: one for name, one in faults(network, postgres, redis_server).items() if options.only in name}
        try:
            spans, verdict = run(folder, network, postgres, redis_server, chosen, options.seconds, say)
        finally:
            redis_server.close()
            postgres.close()
    print(table(spans))
    for line in verdict.faults:
        print(line)
    print(verdict)
    good = all(one.unanswered == 0 and one.recovered_seconds is not None for one in spans.values())
    return 0 if good and verdict.clean else 1


def run(
    folder: Path,
    network: Network,
    postgres: PostgresServer,
    redis_server: RedisServer,
    chosen: dict[str, Fault],
    seconds: float,
    say: Callable[[str], None],
) -> tuple[dict[str, Span], Verdict]:
    """Cause one fault after another under load. Return what callers saw of each, and what became of the jobs."""
    spans: dict[str, Span] = {}
    url = postgres.url(postgres.create_database())
    with SpreadDeployment(folder, url, redis_server.url, **SETTINGS) as deployment:
        deployment.hosts = network.hosts
        deployment.migrate()
        workers = [deployment.launch_worker(mode="slow", for_api=True), deployment.launch_worker(for_api=True)]
        deployment.launch_api()
        api = f"http://127.0.0.1:{deployment.port}"
        clients = [Client(api, number, seed=1) for number in range(2)]
        callers = [Caller(api, request, ANSWER_SECONDS + TIMEOUT) for request in (*4 * [CALL], LIST, READY, LIVE)]
        asking: list[Client | Caller] = [*clients, *callers]
        for one in asking:
            one.start()
        started = time.monotonic()
        wait_until(lambda: span(callers, 0, started).recovered_seconds is not None, "all works", SETTLE_SECONDS)
        for name, fault in chosen.items():
            say(name)
            began = time.monotonic()
            with fault():
                time.sleep(seconds)
                ended = time.monotonic()
            _wait_for_recovery(callers, began, ended)
            time.sleep(REST_SECONDS)
            spans[name] = span(callers, began, ended)
        say("checking")
        for one in asking:
            one.stop()
        for one in asking:
            one.join(SETTLE_SECONDS)
        verdict = check(api, [one for client in clients for one in client.submitted], SETTLE_SECONDS)
        for client in clients:
            verdict.wrong += [*client.refusals, *([repr(client.failure)] if client.failure else [])]
        for worker in workers:
            if worker.process.poll() is not None:
                verdict.wrong.append(f"{worker.name} ended by itself")
    return spans, verdict


def _wait_for_recovery(callers: list[Caller], began: float, ended: float) -> None:
    while span(callers, began, ended).recovered_seconds is None and time.monotonic() < ended + RECOVERY_SECONDS:
        time.sleep(0.1)


def table(spans: dict[str, Span]) -> str:
    """Return a table with a line for each fault."""
    lines = [
        "| fault | asked | 200 | 503 | 504 | other | unanswered | slowest, s | recovered after, s |",
        "|" + 9 * "---|",
    ]
    for name, seen in spans.items():
        counts = seen.statuses
        other = sum(count for status, count in counts.items() if status not in (200, 503, 504, None))
        back = "never" if seen.recovered_seconds is None else f"{seen.recovered_seconds:.1f}"
        cells = [name, len(seen.answers), counts[200], counts[503], counts[504], other, seen.unanswered]
        lines.append(f"| {' | '.join(map(str, cells))} | {seen.slowest:.1f} | {back} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
