"""What every composition must do, wherever its image is: start in order, become healthy, score, and stop."""

from __future__ import annotations

import signal

import httpx2

from tests.composition.compose_file import ENVIRONMENT_EXAMPLE, Service, read_composition, read_environment_file
from tests.composition.machine import Machine
from tests.services import PostgresServer

KEY = "bootstrap-key-of-a-composition-" + "0" * 16
BODY = {
    "query": "Review: The room was spotless and the staff were lovely.\nSentiment:",
    "items": [""],
    "labels": [" positive", " negative"],
    "apply_softmax": True,
}


def run_composition(machine: Machine, postgres: PostgresServer) -> None:
    """Start the composition's services with a CPU worker, score a job over HTTP, and stop all of them by SIGTERM."""
    # As a user would set it in .env: the programs are compiled when they are first met, for less to wait for here.
    composition = read_composition(
        read_environment_file(ENVIRONMENT_EXAMPLE)
        | {"SCORELINE_MULTI_ITEM_ENABLE_STARTUP_WARMUP": "false", "SCORELINE_BOOTSTRAP_KEY": KEY}
    )
    services = composition.services
    postgres.create_database(name=services["postgres"].environment["POSTGRES_DB"])
    for service in composition.start_order("cpu"):
        for other, condition in service.waits_for.items():
            machine.wait_for(services[other], condition)
        machine.start(service)
    running = [service for service in composition.start_order("cpu") if service.healthcheck]
    assert [service.name for service in running] == ["postgres", "redis", "api", "deliver", "worker"]
    for service in running:
        machine.wait_for(service, "service_healthy")

    url, key = f"http://127.0.0.1:{machine.port}", {"Authorization": f"Bearer {KEY}"}
    with httpx2.Client(base_url=url, timeout=60.0, trust_env=False) as client:
        assert client.post("/v1/jobs", json=BODY).status_code == 401
        client.headers.update(key)
        accepted = client.post("/v1/jobs", json=BODY)
        assert accepted.status_code == 202, accepted.text
        assert accepted.json()["model"] == "demonstration"
        job = client.get(f"/v1/jobs/{accepted.json()['id']}", headers={"Prefer": "wait=60"}).json()
    assert job["status"] == "succeeded", job
    ((positive, negative),) = job["result"]["scores"]
    assert positive > 0.9 > 0.1 > negative

    for name in ("api", "deliver", "worker"):
        machine.processes[name].send_signal(signal.SIGTERM)
    for name in ("api", "deliver", "worker"):
        assert machine.processes.pop(name).wait(_grace_seconds(services[name])) == 0, machine.log(name)
        assert not machine.healthy(services[name]), f"{name} is gone, and its health check does not say so"


def _grace_seconds(service: Service) -> float:
    """Return how long Docker Compose waits after SIGTERM before it kills the service."""
    return float(service.raw["stop_grace_period"].removesuffix("s"))
