"""PostgreSQL or Redis is frozen under load: every request is answered in time, and nothing that was accepted is lost.

``SILENCE_SECONDS`` in the environment says for how long; by default a few seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.callers import CALL, LIST, LIVE, READY, TIMEOUT, Caller, span
from tests.faults.deployment import FaultyDeployment
from tests.services import PostgresServer, RedisServer, wait_until
from tests.soak.checker import check
from tests.soak.clients import Client

pytestmark = pytest.mark.faults

SILENCE_SECONDS = float(os.environ.get("SILENCE_SECONDS", "6"))
STATEMENT_SECONDS = 2.0
ANSWER_SECONDS = 15.0  # what docs/guarantees.md promises with longer deadlines than those of this test
SECONDS = 60.0


@pytest.fixture
def servers() -> Iterator[dict[str, PostgresServer | RedisServer]]:
    """Servers of this test alone."""
    servers: dict[str, PostgresServer | RedisServer] = {"postgres": PostgresServer(), "redis": RedisServer()}
    yield servers
    for server in servers.values():
        server.close()


@pytest.mark.timeout(300 + 4 * SILENCE_SECONDS)
@pytest.mark.parametrize("silent", ["postgres", "redis"])
def test_every_request_is_answered_and_no_job_is_lost_while_a_server_is_frozen(
    tmp_path: Path, servers: dict[str, PostgresServer | RedisServer], silent: str
) -> None:
    postgres, redis_server = servers["postgres"], servers["redis"]
    assert isinstance(postgres, PostgresServer)
    assert isinstance(redis_server, RedisServer)
    url = postgres.url(postgres.create_database())
    settings = {"lease_seconds": 5, "chunk_items": 8, "max_attempts": 100, "statement_seconds": STATEMENT_SECONDS}
    with FaultyDeployment(tmp_path, url, redis_server.url, **settings) as deployment:
        deployment.migrate()
        workers = [deployment.launch_worker(mode="slow", for_api=True), deployment.launch_worker(for_api=True)]
        deployment.launch_api()
        api = f"http://127.0.0.1:{deployment.port}"
        client = Client(api, number=1, seed=1)
        callers = [Caller(api, request, ANSWER_SECONDS + TIMEOUT) for request in (*4 * [CALL], LIST, READY, LIVE)]
        asking: list[Client | Caller] = [client, *callers]
        for one in asking:
            one.start()
        wait_until(lambda: all(one.answers for one in callers) and client.submitted, "all of it works", SECONDS)
        began_at = time.monotonic()
        with servers[silent].frozen():
            time.sleep(SILENCE_SECONDS)
            ended_at = time.monotonic()
        before = len(client.submitted)
        wait_until(
            lambda: span(callers, began_at, ended_at).recovered_seconds is not None, "all succeed again", SECONDS
        )
        wait_until(lambda: len(client.submitted) > before + 3 or client.failure, "jobs are accepted again", SECONDS)
        for one in asking:
            one.stop()
        for one in asking:
            one.join(SECONDS)
        seen = span(callers, began_at, ended_at)
        assert seen.unanswered == 0
        if silent == "postgres":
            assert set(seen.statuses) <= {200, 503, 504}
            assert seen.statuses[503] > 0
        else:
            assert set(seen.statuses) == {200}, "nobody waits for Redis"
        assert client.failure is None
        assert client.refusals == [], "an outage is answered with 503"
        verdict = check(api, client.submitted, SECONDS)
        assert verdict.clean, (str(verdict), verdict)
        assert [worker.process.poll() for worker in workers] == [None, None]
        assert "Traceback" not in deployment.log("api")
