"""Runs a deployment under load while faults happen, and checks what became of the accepted jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2

from tests.end_to_end.deployment import AUTHORIZATION
from tests.faults.deployment import LOOPBACK, FaultyDeployment
from tests.services import PostgresServer, RedisServer
from tests.soak.checker import Verdict, check
from tests.soak.clients import Client, Submitted
from tests.soak.events import EventReceiver, check_events
from tests.soak.faults import Faults

LEASE_SECONDS = 2.0
DELIVERERS = 2
SETTLE_SECONDS = 300.0
HANG_SECONDS = 2.0  # how long the receiver delays an answer; longer than deliverers wait

SETTINGS = {
    "lease_seconds": LEASE_SECONDS,
    "statement_seconds": 2.0,
    "poll_seconds": 0.5,
    "sweep_seconds": 0.5,
    "chunk_items": 8,
    # So many workers are lost here that a chunk could be alone in several lost batches, and be taken for poison.
    "max_attempts": 1_000,
    "webhook_allowed_networks": LOOPBACK,
    "webhook_timeout_seconds": HANG_SECONDS / 2,
    "delivery_poll_seconds": 0.1,
    "delivery_host_concurrency": 16,
    # With so many attempts, a receiver that fails at random does not fail all of them.
    "webhook_retry_seconds": ",".join(["0.3"] * 60),
}


@dataclass(frozen=True)
class Plan:
    """How long a soak takes, and how hard it is."""

    seconds: float  # how long faults happen
    seed: int
    workers: int = 4
    clients: int = 3
    pause: float = 1.5  # mean seconds between two faults


def soak(
    plan: Plan,
    folder: Path,
    database_url: str,
    postgres: PostgresServer | None,
    redis_server: RedisServer,
    say: Callable[[str], None],
) -> Verdict:
    """Run a soak on a database, which need not be migrated. postgres: restarted now and then, if given."""
    with (
        EventReceiver(plan.seed, HANG_SECONDS) as receiver,
        FaultyDeployment(folder, database_url, redis_server.url, **SETTINGS) as deployment,
    ):
        deployment.migrate()
        faults = Faults(
            deployment,
            postgres,
            redis_server,
            workers=plan.workers,
            deliverers=DELIVERERS,
            lease_seconds=LEASE_SECONDS,
            seed=plan.seed,
            say=say,
        )
        url = f"http://127.0.0.1:{deployment.port}"
        answer = httpx2.get(f"{url}/v1/webhook-secrets", trust_env=False, headers=AUTHORIZATION)
        receiver.secret = answer.json()["data"][0]["secret"]
        clients = [Client(url, number, plan.seed, receiver.url) for number in range(plan.clients)]
        for client in clients:
            client.start()
        faults.cause(plan.seconds, plan.pause)
        for client in clients:
            client.stop()
        faults.settle()
        for client in clients:
            client.join(SETTLE_SECONDS)
        submitted: list[Submitted] = [one for client in clients for one in client.submitted]
        say("checking")
        verdict = check(url, submitted, SETTLE_SECONDS)
        verdict.untold, verdict.misdelivered = check_events(receiver, verdict.ends, SETTLE_SECONDS)
    for client in clients:
        if client.failure is not None:
            verdict.wrong.append(f"{client.name} gave up: {client.failure!r}")
        verdict.wrong += client.refusals
    items = sum(len(one.work.items) for one in submitted)
    say(f"{items} items, {sum(client.retries for client in clients)} requests sent again")
    say(f"{receiver.requests} requests told of {len(receiver.ids)} jobs")
    say(", ".join(f"{name} {count}" for name, count in faults.counts.most_common()))
    for line in verdict.faults:
        say(line)
    return verdict
