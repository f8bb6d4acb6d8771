"""A backup is taken while jobs are scored, and a new deployment on the restored database finishes them."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.releases import SENTIMENT, Store, long_job
from tests.services import PostgresServer, RedisServer, find_binary, wait_until


def finish_after_a_restore(
    folder: Path, url: str, redis_server: RedisServer, back_up: Callable[[], None], restore: Callable[[], str]
) -> None:
    """back_up: copies the database while it is used; restore: makes a database of the copy, and returns its URL."""
    with Store(folder / "first", url, redis_server.url) as first:
        first.run("migrate")
        first.start("worker")
        first.start("api")
        scored = first.submit(SENTIMENT, idempotency_key="once")
        scores = first.scores(scored)
        in_flight = first.submit(long_job(1))
        waiting = first.submit(long_job(2))
        wait_until(lambda: first.job(in_flight)["progress"]["scored_items"] > 0, "some items to be scored")
        back_up()
        assert first.job(waiting)["status"] in ("queued", "running"), "work was in flight during the backup"
        later = first.submit(SENTIMENT)
        expected = {job: first.scores(job) for job in (in_flight, waiting)}
    redis_server.flush()

    with Store(folder / "second", restore(), redis_server.url) as second:
        second.run("migrate")
        second.start("worker")
        second.start("api")
        assert second.scores(scored) == scores
        for job, scores_of_the_first in expected.items():
            np.testing.assert_array_equal(second.scores(job), scores_of_the_first)
        assert second.submit(SENTIMENT, idempotency_key="once") == scored
        assert second.client.get(f"/v1/jobs/{later}").status_code == 404, "it was submitted after the backup"
        assert "hold" in second.run("check")


@pytest.mark.slow
def test_a_dump_of_postgresql_has_jobs_that_are_being_scored(
    tmp_path: Path, postgres: PostgresServer, redis_server: RedisServer
) -> None:
    source, target = postgres.create_database(), postgres.create_database()
    place = [f"--host={postgres.address}", f"--port={postgres.port}", "--username=scoreline"]
    dump = tmp_path / "scoreline.dump"

    def back_up() -> None:
        subprocess.run([find_binary("pg_dump"), *place, "--format=custom", f"--file={dump}", source], check=True)

    def restore() -> str:
        subprocess.run(
            [find_binary("pg_restore"), *place, "--exit-on-error", "--no-owner", f"--dbname={target}", dump], check=True
        )
        return postgres.url(target)

    finish_after_a_restore(tmp_path, postgres.url(source), redis_server, back_up, restore)


@pytest.mark.matrix
def test_a_copy_of_sqlite_has_jobs_that_are_being_scored(tmp_path: Path, redis_server: RedisServer) -> None:
    source, copy = tmp_path / "scoreline.db", tmp_path / "backup.db"

    def back_up() -> None:
        with sqlite3.connect(source) as live, sqlite3.connect(copy) as target:
            live.backup(target)

    def restore() -> str:
        return f"sqlite:///{copy}"

    finish_after_a_restore(tmp_path, f"sqlite:///{source}", redis_server, back_up, restore)
