"""PostgreSQL goes away under load: every accepted job is done once, and with the right scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest

from jobs.invariants import find_violations
from jobs.queue.accept import accept, accept_group
from jobs.queue.claims.claim import claim
from jobs.queue.read import read_scores, statuses
from jobs.queue.sweep import sweep
from jobs.store.database import Database
from jobs.store.records import Accepted, JobStatus, Origin
from settings.store import StoreSettings
from tests.faults.deployment import FaultyDeployment
from tests.jobs.work import CARD, finish_all, submission, take
from tests.services import PostgresServer, RedisServer, wait_until
from tests.soak.checker import check
from tests.soak.clients import Client
from tests.stores import migrate_store

pytestmark = pytest.mark.faults

OUTAGES = 4
CRASHES = 3
SECONDS = 60.0


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server of this test alone, because it is stopped again and again."""
    server = PostgresServer()
    yield server
    server.close()


def restart(postgres: PostgresServer) -> None:
    """Restart PostgreSQL as after a crash: it recovers from its log, and loses what was not on disk."""
    postgres.restart()


def end_sessions(postgres: PostgresServer) -> None:
    """End all sessions, in the middle of any transaction."""
    with psycopg.connect(postgres.url("postgres").replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")


def refuse_to_write(postgres: PostgresServer) -> None:
    """Refuse to write for some time, as a primary does that was demoted, or a server whose disk is full."""
    with postgres.only_reading(), psycopg.connect(postgres.url("postgres").replace("+psycopg", "")) as connection:
        connection.autocommit = True
        connection.execute("SELECT pg_sleep(3)")  # longer than a lease


@pytest.mark.parametrize("outage", [restart, end_sessions, refuse_to_write])
def test_every_accepted_job_is_done_once_through_outages_under_load(
    tmp_path: Path, own_postgres: PostgresServer, redis_server: RedisServer, outage: Callable[[PostgresServer], None]
) -> None:
    url = own_postgres.url(own_postgres.create_database())
    settings = {"lease_seconds": 2, "chunk_items": 8, "max_attempts": 100, "bell_prefix": outage.__name__}
    with FaultyDeployment(tmp_path, url, redis_server.url, **settings) as deployment:
        deployment.migrate()
        deployment.launch_worker(mode="slow", for_api=True, wait=False)
        deployment.launch_worker(for_api=True, wait=False)
        deployment.launch_api()
        client = Client(f"http://127.0.0.1:{deployment.port}", number=1, seed=1)
        client.start()
        for _ in range(OUTAGES):
            before = len(client.submitted)
            outage(own_postgres)
            wait_until(
                lambda before=before: len(client.submitted) > before + 3 or client.failure,  # type: ignore[misc]
                "jobs are accepted again",
                SECONDS,
            )
        client.stop()
        client.join(SECONDS)
        assert client.failure is None
        assert client.refusals == [], "an outage is answered with 503"
        verdict = check(f"http://127.0.0.1:{deployment.port}", client.submitted, SECONDS)
        assert verdict.clean, (str(verdict), verdict)
        logs = "".join(deployment.log(name) for name in ("worker-1", "worker-2", "api"))
    assert "Traceback" not in logs


def test_jobs_that_were_accepted_with_calls_outlive_a_crash_of_postgresql(own_postgres: PostgresServer) -> None:
    url = own_postgres.url(own_postgres.create_database())
    migrate_store(url)
    promised: list[str] = []
    for crash in range(CRASHES):
        with closing(Database.open(StoreSettings(database_url=url))) as database:
            origins = [Origin.CALL, Origin.JOB] * 10
            group = [submission(prefix=(crash, n), origin=origin) for n, origin in enumerate(origins)]
            for origin, outcome in zip(origins, accept_group(database, group), strict=True):
                assert isinstance(outcome, Accepted)
                promised += [outcome.job_id] if origin is Origin.JOB else []
            own_postgres.kill()
        own_postgres.start()
    with closing(Database.open(StoreSettings(database_url=url))) as database:
        assert statuses(database, promised) == dict.fromkeys(promised, JobStatus.QUEUED)
        assert find_violations(database, full=True) == []


def test_calls_whose_end_a_crash_of_postgresql_undoes_are_scored_again(own_postgres: PostgresServer) -> None:
    """Such an end is not waited for, so each call has ended with its scores, or it waits again after its lease."""
    url = own_postgres.url(own_postgres.create_database())
    migrate_store(url)
    settings = StoreSettings(database_url=url, lease_seconds=0.2)
    for crash in range(CRASHES):
        with closing(Database.open(settings)) as database:
            shapes = [submission(chunks=2, prefix=(crash, n), origin=Origin.CALL) for n in range(10)]
            calls = [one.job_id for one in accept_group(database, shapes) if isinstance(one, Accepted)]
            accept(database, submission(model="other"))  # Its commit puts all before it on the disk.
            claimed = take(database)
            assert not claimed.durable
            assert set(finish_all(database, claimed).job_ids) == set(calls)
            own_postgres.kill()
        own_postgres.start()
        with closing(Database.open(settings)) as database:
            found = statuses(database, calls)
            assert found.keys() == set(calls)
            assert set(found.values()) <= {JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED}
            assert find_violations(database, full=True) == []
            wait_until(partial(_have_ended, database, calls), "all calls have ended", SECONDS)
            for job_id in calls:
                page = read_scores(database, "default", job_id, 0, 2)
                assert page.scores.logits[:, 0].tolist() == [0.0, 1.0]
            assert find_violations(database, full=True) == []


def _have_ended(database: Database, calls: list[str]) -> bool:
    """Do once what workers do, and return whether these calls have succeeded."""
    sweep(database)
    claimed = claim(database, "worker", CARD, 1_000_000)
    if claimed is not None:
        finish_all(database, claimed)
    return set(statuses(database, calls).values()) == {JobStatus.SUCCEEDED}
