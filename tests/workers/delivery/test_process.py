"""The delivery process: its metrics, its log, its health check, and the libraries that it does not load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.queue.accept import accept
from jobs.store.database import Database
from jobs.store.webhook_events import Webhook
from jobs.webhooks.delivery_log import list_deliveries
from settings.store import StoreSettings
from tests.forked.running import run
from tests.jobs.work import submission
from tests.services import free_port, wait_until
from tests.stores import migrate_store
from tests.webhooks.receivers import Receiver, status
from tests.workers.engine_loop.test_metrics import scrape

ROOT = Path(__file__).parents[3]


class Deliverer:
    """The delivery process on a database. Its log goes to a file."""

    def __init__(self, url: str, log: Path, **settings: object) -> None:
        self.port = free_port()
        self._log = log
        own = {"database_url": url, "delivery_metrics_port": self.port, "webhook_allowed_networks": "127.0.0.0/8"}
        self.environment = os.environ | {
            f"SCORELINE_{name.upper()}": str(value) for name, value in (own | settings).items()
        }
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers.delivery"], cwd=ROOT, env=self.environment, stderr=output
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_until_said(self, words: str) -> None:
        def said() -> bool:
            assert self.process.poll() is None, self.log
            return words in self.log

        wait_until(said, f"it says {words!r}")

    def health(self) -> subprocess.CompletedProcess[str]:
        """Run its health check."""
        name = "operations.delivery_health"
        return run("-m", name, imports=[name], environment=self.environment)


@pytest.fixture
def deliverer(tmp_path: Path) -> Iterator[Callable[..., Deliverer]]:
    started: list[Deliverer] = []

    def start(url: str, **settings: object) -> Deliverer:
        started.append(Deliverer(url, tmp_path / f"deliverer-{len(started)}.log", **settings))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def test_results_of_attempts_are_counted_and_urls_are_not_logged(
    deliverer: Callable[..., Deliverer], sqlite_url: str
) -> None:
    database = Database.open(StoreSettings(database_url=sqlite_url))
    with Receiver(status(200)) as good, Receiver(status(410)) as gone, Receiver(status(500)) as bad:
        receivers = {"delivered": good, "failed": gone, "pending": bad}
        jobs = {
            state: accept(
                database, submission(chunks=0, webhook=Webhook(f"{receiver.url()}&token=hidden", f"{state}.example"))
            ).job_id
            for state, receiver in receivers.items()
        }
        process = deliverer(sqlite_url)
        process.wait_until_said("ready")
        for state, job_id in jobs.items():

            def attempted(job_id: str = job_id) -> bool:
                return bool(list_deliveries(database, "default", job_id)[0].attempts)

            wait_until(attempted, "an attempt")
            assert list_deliveries(database, "default", job_id)[0].state == state
    process.wait_until_said("an endpoint is disabled")
    wait_until(lambda: process.log.count('"attempt": 1') == 3, "a line for each")
    samples = scrape(process.port)
    assert samples["scoreline_delivery_attempts_total delivered"] == 1
    assert samples["scoreline_delivery_attempts_total status"] == 2
    assert samples["scoreline_deliveries_ended_total delivered"] == 1
    assert samples["scoreline_deliveries_ended_total failed"] == 1
    assert samples["scoreline_endpoints_disabled_total"] == 1
    assert "hidden" not in process.log, "what a URL has behind its host may be a secret"
    assert "whsec_" not in process.log
    database.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "0.0.0.0"])
def test_the_process_is_healthy_while_it_looks_for_deliveries(
    deliverer: Callable[..., Deliverer], tmp_path: Path, host: str
) -> None:
    url = f"sqlite:///{tmp_path}/later.db"
    process = deliverer(url, delivery_metrics_host=host)
    process.wait_until_said("waiting for the database")
    assert process.health().returncode == 1, "it waits for the schema"
    migrate_store(url)
    process.wait_until_said("ready")
    wait_until(lambda: process.health().returncode == 0, "it to be healthy")
    process.process.terminate()
    assert process.process.wait(20) == 0, process.log
    ended = process.health()
    assert ended.returncode == 1
    assert ended.stderr.startswith("scoreline: can't ask: ")


def test_invalid_settings_are_reported_in_one_line(deliverer: Callable[..., Deliverer], sqlite_url: str) -> None:
    process = deliverer(sqlite_url, webhook_retry_seconds="5,soon")
    assert process.process.wait(20) == 2
    assert "SCORELINE_WEBHOOK_RETRY_SECONDS has the entry 'soon': each entry must be a finite number" in process.log
    assert "Traceback" not in process.log


def test_the_delivery_process_loads_neither_an_accelerator_library_nor_redis() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import workers.delivery.__main__, sys; print(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "webhooks.sending" in loaded
    assert not {"jax", "flax", "redis", "celery", "kombu", "fastapi", "model", "bell"} & set(loaded)
