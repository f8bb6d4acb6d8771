"""From version 0.2.0 to this one: first the schema, then the workers, then the API, while clients go on."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.releases import ROOT, SENTIMENT, Store, long_job
from tests.services import PostgresServer, RedisServer, wait_until

PREVIOUS = "5cccd4392884f64411f2725f5a5cc5737dab755d"
"""The commit of version 0.2.0."""

CLOSE = 2e-5
"""How far log-probabilities of two algorithms may differ; scores between 0 and 1 differ by less."""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the previous version."""
    archive = subprocess.run(["git", "archive", PREVIOUS], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip("this checkout does not have the history of 0.2.0, so no upgrade is tested: git fetch --unshallow")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.fixture(params=["postgresql", pytest.param("sqlite", marks=pytest.mark.matrix)])
def store(request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer, redis_server: RedisServer) -> Store:
    on_postgres = request.param == "postgresql"
    url = postgres.url(postgres.create_database()) if on_postgres else f"sqlite:///{tmp_path / 'scoreline.db'}"
    return Store(tmp_path / "logs", url, redis_server.url)


@pytest.mark.slow
def test_a_rolling_upgrade_loses_nothing_and_changes_no_score(store: Store, previous: Path) -> None:
    with store:
        store.run("migrate", source=previous)
        worker, api = store.start("worker", previous), store.start("api", previous)
        key = store.run("keys", "create", "--name", "of the previous version", source=previous).strip()
        before = store.scores(store.submit(SENTIMENT, idempotency_key="once"))
        in_flight = store.submit(long_job(1))
        wait_until(lambda: store.job(in_flight)["progress"]["scored_items"] > 0, "some items to be scored")
        waiting = store.submit(long_job(2))

        store.run("migrate")
        meanwhile = store.submit(SENTIMENT)
        assert store.client.get("/readyz").status_code == 200, "the previous version works with the new schema"
        worker.kill()
        store.start("worker")
        np.testing.assert_allclose(store.scores(meanwhile), before, atol=CLOSE)
        store.stop(api)
        store.start("api")

        assert np.shape(store.scores(in_flight)) == np.shape(store.scores(waiting)) == (400, 2)
        again = store.submit(long_job(1))
        np.testing.assert_allclose(store.scores(in_flight), store.scores(again), atol=CLOSE)
        repeated = store.client.post("/v1/jobs", json=dict(SENTIMENT), headers={"Idempotency-Key": "once"})
        np.testing.assert_array_equal(store.scores(repeated.json()["id"]), before, "the job of the previous version")
        store.client.headers["Authorization"] = f"Bearer {key}"
        assert store.client.get("/v1/models").status_code == 200, "keys of the previous version are good"
        assert "hold" in store.run("check")
