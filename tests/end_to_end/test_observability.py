"""What a real deployment tells of itself: traces at a collector, and metrics at a Prometheus that reads them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from jobs.score_counts import Cell, add_counts
from jobs.store.database import Database
from judgement.artefacts import write
from judgement.drift import Reference
from settings.store import StoreSettings
from tests.api.artefacts import artefact
from tests.end_to_end.deployment import Deployment
from tests.services import PostgresServer, RedisServer, free_port, wait_until
from tests.telemetry.collector import Collector
from tests.telemetry.monitoring import program, queries, rules, running_prometheus
from tests.telemetry.recording import CALLER, OTHER_CALLER, TRACE_ID
from tests.telemetry.test_monitoring import documented, used
from tests.webhooks.receivers import Receiver, status

pytestmark = pytest.mark.slow

QUERY = "Secretive query: what is the weather like?\n" * 12
SECONDS = 90.0


@dataclass
class Running:
    """API, worker and deliverer, the collector that they send spans to, and a receiver of webhooks."""

    deployment: Deployment
    collector: Collector
    receiver: Receiver
    ports: dict[str, int]  # where Prometheus finds each of its jobs' metrics

    def body(self, items: int = 3) -> dict[str, object]:
        return {
            "query": QUERY,
            "items": [f"Secretive document {n}.\nRelevant:" for n in range(items)],
            "labels": [" yes", " no"],
            "webhook": {"url": f"http://127.0.0.1:{self.receiver.port}/secretive-path"},
        }

    def submit(self, traceparent: str | None = None, **given: object) -> str:
        """Submit a job with a webhook, and return its id."""
        headers = {} if traceparent is None else {"traceparent": traceparent}
        response = self.deployment.client.post("/v1/jobs", json=self.body() | given, headers=headers)
        assert response.status_code == 202, response.text
        return str(response.json()["id"])


def apply_an_artefact(url: str, folder: Path) -> None:
    """Have an artefact in the folder, and counts of the rows that it was applied to in the last full hour."""
    first = np.random.default_rng(0).uniform(size=1_000)
    reference = Reference.of(np.stack([first, 1 - first], axis=1), None)
    one, hour = artefact("of another model", figures={"reference": reference.written()}), int(time.time() // 3600) - 1
    write(one, folder / "refunds.json")
    counts = {
        Cell(one.id, hour, distribution, cell): rows
        for distribution, cells in reference.counts.items()
        for cell, rows in enumerate(cells)
    }
    with closing(Database.open(StoreSettings(database_url=url))) as database:
        add_counts(database, counts)


@pytest.fixture(scope="module")
def running(
    postgres: PostgresServer, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    ports = {"scoreline-worker": free_port(), "scoreline-deliverer": free_port()}
    with Collector() as collector, Receiver(status(204)) as receiver, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        url, artefacts = postgres.url(postgres.create_database()), tmp_path_factory.mktemp("artefacts")
        deployment = Deployment(
            tmp_path_factory.mktemp("observed"),
            url,
            redis_server.url,
            calibrations=artefacts,
            worker_metrics_port=ports["scoreline-worker"],
            delivery_metrics_port=ports["scoreline-deliverer"],
            webhook_allowed_networks="127.0.0.0/8",
            metric_tenants=5,
            max_headers=40,
        )
        with deployment:
            deployment.migrate()
            apply_an_artefact(url, artefacts)
            deployment.start_api()
            deployment.start_worker()
            deployment.start_deliverer()
            yield Running(deployment, collector, receiver, ports | {"scoreline-api": deployment.port})


def test_request_scores_and_webhook_of_a_job_are_one_trace(running: Running) -> None:
    job_id = running.submit(CALLER)
    running.submit(OTHER_CALLER)
    collector = running.collector
    ends = ("deliver webhook", "commit")
    wait_until(lambda: set(ends) <= collector.trace(TRACE_ID).keys(), "the trace is complete", SECONDS)
    trace = collector.trace(TRACE_ID)
    (request,), (batch,), (delivery,) = (trace[name] for name in ("POST /v1/jobs", "score batch", "deliver webhook"))
    assert [span.service for span in (request, batch, delivery)] == [
        *("scoreline-api", "scoreline-worker", "scoreline-deliverer")
    ]
    assert request.parent_id == CALLER.split("-")[2]
    assert {batch.parent_id, delivery.parent_id} == {request.span_id}
    assert (TRACE_ID, request.span_id) in batch.links
    assert request.attributes["scoreline.job.id"] == delivery.attributes["scoreline.job.id"] == job_id
    parts = {name for name, spans in trace.items() for span in spans if span.parent_id == batch.span_id}
    assert {"claim", "commit", "prefill", "extend", "heads"} <= parts
    # The other job may have been in the same batch or in one of its own. In both cases its trace says so.
    other = OTHER_CALLER.split("-")[1]
    of_batch = {"score batch", "score in a batch"}
    wait_until(lambda: of_batch & collector.trace(other).keys(), "the other job has a trace of its own", SECONDS)


def test_log_lines_name_their_trace(running: Running) -> None:
    trace_id = "1" * 32
    running.submit(f"00-{trace_id}-{'2' * 16}-01")

    def named(log: str, event: str) -> bool:
        return any(line.get("trace_id") == trace_id for line in running.deployment.events(log, event))

    for log, event in (("api", "request"), ("worker", "scored"), ("deliver", "delivered")):
        wait_until(partial(named, log, event), f"a line of {log} names the trace", SECONDS)


def test_no_span_of_any_process_holds_a_text_of_a_client(running: Running) -> None:
    trace_id = "3" * 32
    running.submit(f"00-{trace_id}-{'2' * 16}-01")
    wait_until(lambda: "deliver webhook" in running.collector.trace(trace_id), "the trace is complete", SECONDS)
    assert not [span.name for span in running.collector.spans if "secretive" in span.text.lower()]


def use_everything(running: Running) -> None:
    """Do a little of everything that the metrics tell of."""
    client = running.deployment.client
    body = running.body() | {"webhook": None}
    assert client.post("/v1/score", json=body).status_code == 200
    for priority in ("normal", "bulk"):
        running.submit(priority=priority)
    assert client.get("/v1/jobs/job_of_nobody").status_code == 404
    assert client.get("/livez", headers=[(f"x-{n}", "1") for n in range(60)]).status_code == 431


def run_a_file(running: Running) -> None:
    """Have the lines of a file scored, one of which is refused."""
    client = running.deployment.client
    body = {name: value for name, value in running.body().items() if name != "webhook"}
    to_score = {"method": "POST", "url": "/v1/score"}
    lines = [to_score | {"custom_id": str(n), "body": given} for n, given in enumerate((body, {}))]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", content)})
    assert file.status_code == 200, file.text
    asked = {"input_file_id": file.json()["id"], "endpoint": "/v1/score", "completion_window": "24h"}
    batch = client.post("/v1/batches", json=asked)
    assert batch.status_code == 200, batch.text


def test_every_query_of_the_dashboard_returns_data_and_every_rule_is_evaluated(
    running: Running, tmp_path: Path
) -> None:
    program("prometheus")
    with running_prometheus(tmp_path, running.ports) as prometheus:
        run_a_file(running)
        without_data = dict(enumerate(queries()))

        def all_have_data() -> bool:
            use_everything(running)
            for number, (_, expression) in list(without_data.items()):
                if prometheus.values(expression):
                    del without_data[number]
            return not without_data

        try:
            wait_until(all_have_data, "every query returns data", SECONDS)
        except TimeoutError:
            raise AssertionError(f"no data: {list(without_data.values())}") from None
        evaluated = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        assert len(evaluated) == len(rules())
        assert {rule["health"] for rule in evaluated} == {"ok"}
        assert prometheus.values('ALERTS{alertstate="firing"}') == []
        names = {name for name in prometheus.ask("label/__name__/values") if "scoreline_" in name}
        assert {one for name in names if not name.endswith("_created") for one in used(name)} == documented()
