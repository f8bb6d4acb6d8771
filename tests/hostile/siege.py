"""Attack a whole deployment, watch it meanwhile, and judge it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psycopg

from tests.end_to_end.deployment import ROOT, Deployment
from tests.hostile.assault import Assault
from tests.hostile.attacks.attack import Caller
from tests.hostile.attacks.table import Table
from tests.hostile.conformance import undocumented_answers
from tests.hostile.contract import complaints
from tests.hostile.document import Document, read_document
from tests.hostile.verdict import MEBIBYTE, Report
from tests.hostile.watching import BODY, Watch, Watched
from tests.services import PostgresServer, RedisServer, wait_until

USUAL_SECONDS = 15.0
"""How long the quiet tenant is watched before and after the assault."""

WARM_CALLS, WARM_SECONDS = 20, 0.3
"""The worker is warm when so many calls take no longer than this each."""

RECOVERY_SECONDS = 120.0
"""Time in which the waiting work of the attackers must be done."""

LOWEST_PRIORITY = 19
"""The niceness of the attackers."""

EXAMPLES = 50
"""Requests by chance that schemathesis sends to each operation."""

QUOTA = 2_000_000
"""Waiting tokens that the attacking tenant may have."""

EMPTY_DATABASE = 32 * MEBIBYTE
BYTES_PER_TOKEN = 8
BYTES_PER_JOB = 16_384
STORED_BYTES = 64 * MEBIBYTE
"""The bound of the database: these, with the tokens that may wait or were scored, and the jobs that were accepted. Jobs
with many scores count in what a tenant may store, and calls once more.
"""

SETTINGS: dict[str, object] = {
    "call_timeout_seconds": 20,
    "max_call_timeout_seconds": 20,
    "body_seconds": 40,
    "upload_timeout_seconds": 20,
    # At each sign of life, a stream looks whether its client has gone, and reads on from its connection.
    "event_heartbeat_seconds": 1,
    # A refused request that was sent behind a stream is answered when the stream ends.
    "max_event_stream_seconds": 30,
    "max_stored_bytes_per_tenant": STORED_BYTES,
    # The quiet tenant's usual time must not hold the time in which programs are compiled.
    "multi_item_enable_startup_warmup": "true",
}
"""What would otherwise let an honest but slow client hold a connection for minutes."""


@dataclass(frozen=True)
class Plan:
    """How long and how hard a service is attacked."""

    requests: int
    seconds: float
    seed: int
    pace: float  # requests that are begun in a second, at most
    judge_times: bool = False
    kind: str | None = None  # the only kind of attack


class Siege:
    """A deployment with an attacking tenant and a quiet one."""

    def __init__(self, folder: Path, postgres: PostgresServer, redis: RedisServer, say: Callable[[str], None]) -> None:
        self._name = postgres.create_database()
        self._postgres = postgres
        self._say = say
        self.deployment = Deployment(folder, postgres.url(self._name), redis.url, **SETTINGS)

    def run(self, plan: Plan) -> Report:
        """Start everything, attack, and return what was seen."""
        with self.deployment as deployment:
            document, callers, quiet = self._start()
            pid = self._pid
            watched = Watched(deployment.port, quiet, pid, self._address())
            assault = Assault(deployment.port, document, callers, plan.seed, pace=plan.pace, kind=plan.kind)
            undocumented = ""
            if plan.kind is None:
                self._say("holding answers against the document")
                url = f"http://127.0.0.1:{deployment.port}"
                undocumented = undocumented_answers(
                    url, callers[0].key or "", deployment.folder, examples=EXAMPLES, seed=plan.seed
                )
            wait_until(self._is_warm, "the worker to answer quickly", 120)
            with Watch(watched) as watch:
                self._say("watching the quiet tenant")
                watch.begin("usual")
                time.sleep(USUAL_SECONDS)
                self._say("attacking")
                watch.begin("attacked")
                # Attackers elsewhere would not use these processors, so they take only what everybody else leaves.
                os.nice(LOWEST_PRIORITY)
                tally = asyncio.run(assault.run(plan.requests, plan.seconds, self._say))
                self._say("the attackers have gone")
                watch.begin("after")
                time.sleep(USUAL_SECONDS)
                phases = watch.finish()
            report = Report(
                tally,
                phases["usual"],
                phases["attacked"],
                phases["after"],
                wanted_requests=plan.requests,
                database_bound=self._bound(),
                undocumented=undocumented,
                judge_times=plan.judge_times,
            )
            report.dead = self._what_is_dead()
            report.broken_rules = self._broken_rules()
        return report

    def replay(self, seed: int, number: int, kind: str | None = None) -> None:
        """Carry out one attack on a fresh deployment, and print what comes back. kind: the only kind that there was."""
        with self.deployment as deployment:
            document, callers, _ = self._start()
            assault = Assault(deployment.port, document, callers, seed)
            attack, attack_plan = assault.plan(Table(document, kind=kind), number)
            outcome = asyncio.run(assault.carry_out(attack_plan))
            print(attack)
            for answer in outcome.answers:
                print(
                    answer.status, answer.headers, answer.body[:2_000], complaints(document, attack, answer), sep="\n"
                )
            print(f"{outcome.ended} after {outcome.seconds:.2f} s")

    def _start(self) -> tuple[Document, list[Caller], str]:
        """Start the processes. Return the document, the attacking callers, and the key of the quiet tenant."""
        deployment = self.deployment
        deployment.migrate()
        self._operate("tenants", "create", "attacker", "--max-waiting-tokens", str(QUOTA))
        attacker = self._operate("keys", "create", "--tenant", "attacker", "--name", "attacker")
        reader = self._operate("keys", "create", "--tenant", "attacker", "--name", "reader", "--scopes", "read")
        quiet = self._operate("keys", "create", "--tenant", "quiet", "--name", "quiet")
        self._pid = deployment.start_api().pid
        waiting = self._submit_as(attacker)
        self._keep_waiting(waiting)
        deployment.start_worker()
        # The process that reads long bodies is started for the first one, and must not count as left by the attackers.
        deployment.client.post("/v1/score", json=BODY | {"unknown": "a" * 2 * MEBIBYTE})
        foreign = deployment.submit(BODY)
        job = self._submit_as(attacker)
        keys = (attacker, reader, None, f"sk_sl_{'a' * 16}_{'a' * 52}", "k")
        callers = [Caller(key, job, foreign, waiting) for key in keys]
        return read_document(deployment.client.get("/openapi.json").json()), callers, quiet

    def _keep_waiting(self, job_id: str) -> None:
        """Have no worker take a job, so that whoever follows it does so until the end."""
        with psycopg.connect(self._address()) as connection:
            for table, column in (("jobs", "id"), ("chunks", "job_id")):
                connection.execute(f"UPDATE {table} SET model = 'of nobody' WHERE {column} = %s", (job_id,))

    def _submit_as(self, key: str) -> str:
        headers = {"Authorization": f"Bearer {key}"}
        response = self.deployment.client.post("/v1/jobs", json=BODY, headers=headers)
        assert response.status_code == 202, response.text
        return str(response.json()["id"])

    def _operate(self, module: str, *arguments: str) -> str:
        command = [sys.executable, "-m", f"operations.{module}", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self.deployment.environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def _address(self) -> str:
        return self._postgres.url(self._name).replace("postgresql+psycopg", "postgresql")

    def _bound(self) -> int:
        """Return how large the database may be, from what was accepted."""
        with psycopg.connect(self._address()) as connection:
            row = connection.execute("SELECT count(*), coalesce(sum(prompt_tokens), 0) FROM jobs").fetchone()
        assert row is not None
        return EMPTY_DATABASE + 4 * STORED_BYTES + BYTES_PER_JOB * int(row[0]) + BYTES_PER_TOKEN * int(row[1])

    def _is_warm(self) -> bool:
        """Return whether a row of calls is answered quickly."""
        started = time.monotonic()
        for _ in range(WARM_CALLS):
            self.deployment.client.post("/v1/score", json=BODY).raise_for_status()
        return time.monotonic() - started < WARM_CALLS * WARM_SECONDS

    def _what_is_dead(self) -> str:
        """Return what does not work, even when the work that the attackers left has had time to be done."""
        answers: list[str] = []

        def works() -> bool:
            answers.clear()
            for method, path in (("GET", "/livez"), ("GET", "/readyz"), ("POST", "/v1/score")):
                try:
                    response = self.deployment.client.request(method, path, json=BODY if method == "POST" else None)
                except httpx2.TransportError as error:
                    answers.append(f"{path} is not answered: {error!r}")
                else:
                    if response.status_code != 200:
                        answers.append(f"{path} is answered with {response.text[:200]}")
            return not answers

        with contextlib.suppress(TimeoutError):
            wait_until(works, "the service to work again", RECOVERY_SECONDS)
        return "; ".join(answers)

    def _broken_rules(self) -> str:
        command = [sys.executable, "-m", "operations.check"]
        done = subprocess.run(command, cwd=ROOT, env=self.deployment.environment, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout + done.stderr
