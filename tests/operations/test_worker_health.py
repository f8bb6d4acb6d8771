"""The health check of a worker's container: what it reports, and that it loads no accelerator library."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checkpoints.card import ModelCard
from jobs.queue.worker_registry import register
from jobs.store.database import Database
from jobs.store.records import WorkerRecord
from settings.store import StoreSettings
from tests.databases import quick_on
from tests.forked.running import run
from tests.jobs.conftest import use_clock
from tests.services import free_port
from workers.engine_loop.heartbeat import host_of, new_worker_id

ROOT = Path(__file__).parents[2]


def check_health(url: str) -> subprocess.CompletedProcess[str]:
    """Run the check on a store."""
    environment = os.environ | {"SCORELINE_DATABASE_URL": url}
    return run("-m", "operations.worker_health", imports=["operations.worker_health"], environment=environment)


def register_worker(url: str, worker_id: str, *, seen_seconds_ago: float = 0.0) -> None:
    database = Database.open(StoreSettings(database_url=url))
    use_clock(database, lambda: time.time() - seen_seconds_ago)
    register(database, WorkerRecord(worker_id, ModelCard("demo", 64, 1000, "tokenizer"), "weights", "none", "float32"))
    database.close()


def assert_unhealthy(outcome: subprocess.CompletedProcess[str], reason: str) -> None:
    assert (outcome.returncode, outcome.stdout) == (1, "")
    (line,) = outcome.stderr.splitlines()
    assert reason in line


@quick_on("postgres")
def test_a_worker_of_this_host_is_found_on_either_database(store_url: str) -> None:
    assert_unhealthy(check_health(store_url), "no live worker")
    register_worker(store_url, new_worker_id())
    outcome = check_health(store_url)
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_the_workers_of_other_hosts_and_those_long_silent_do_not_count(sqlite_url: str) -> None:
    register_worker(sqlite_url, "elsewhere-7-0a1b2c3d")
    register_worker(sqlite_url, f"{socket.gethostname()}-2-7-0a1b2c3d")  # its host's name begins with this one's
    register_worker(sqlite_url, new_worker_id(), seen_seconds_ago=60.0)
    assert_unhealthy(check_health(sqlite_url), "no live worker")


@pytest.mark.slow
def test_a_store_that_can_not_be_read_is_reported_in_one_line(tmp_path: Path) -> None:
    absent = f"postgresql+psycopg://scoreline@127.0.0.1:{free_port()}/scoreline"
    assert_unhealthy(check_health(absent), "scoreline: ")
    assert_unhealthy(check_health(f"sqlite:///{tmp_path}/never-migrated.db"), "scoreline: ")
    assert_unhealthy(check_health("nonsense"), "scoreline: ")


def test_it_loads_no_accelerator_library(sqlite_url: str) -> None:
    loaded = "print(sorted({'jax', 'flax', 'model'} & set(sys.modules)))"
    code = f"import sys, operations.worker_health; operations.worker_health.main(); {loaded}"
    outcome = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"SCORELINE_DATABASE_URL": sqlite_url},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert outcome.stdout == "[]\n"


def test_the_host_in_a_worker_id_may_contain_dashes() -> None:
    assert host_of(new_worker_id()) == socket.gethostname()
    assert host_of("gpu-7-west-1234-0a1b2c3d") == "gpu-7-west"
