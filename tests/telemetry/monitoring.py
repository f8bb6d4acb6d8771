"""The files of deploy/prometheus and deploy/grafana, and a real Prometheus that reads them."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tests.services import MissingBinaryError, find_binary, free_port, wait_until

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
RULES_TEST = RULES.with_name("rules_test.yml")
CONFIGURATION = RULES.with_name("prometheus.yml")
DASHBOARD = ROOT / "deploy" / "grafana" / "scoreline.json"
METRIC = re.compile(r"\b(?:model:)?scoreline_[a-z0-9_]+(?::[a-z]+)?\b")


def program(name: str) -> str:
    """Return the path of a program of Prometheus; skip the test where there is none, unless MONITORING is set."""
    try:
        return find_binary(name)
    except MissingBinaryError:
        assert not os.environ.get("MONITORING"), f"{name} is not installed"
        pytest.skip(f"NOT TESTED: {name} is not installed (Debian's package prometheus)")


def rules() -> list[dict[str, Any]]:
    """Return all rules."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def queries() -> list[tuple[str, str]]:
    """Return the title of the panel and the expression of each query of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self._client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30.0, trust_env=False)

    def ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer."""
        answer = self._client.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def values(self, expression: str) -> list[float]:
        """Return the values of an expression now, as a panel would show them, without those that are no number."""
        asked = expression.replace("$__rate_interval", "20s").replace("$model", ".*")
        found = [float(sample["value"][1]) for sample in self.ask("query", query=asked)["result"]]
        return [value for value in found if not math.isnan(value)]


@contextmanager
def running_prometheus(folder: Path, ports: Mapping[str, int]) -> Iterator[Prometheus]:
    """Run a Prometheus with the configuration and the rules of the deployment. ports: of each job's target.

    It reads the targets and evaluates the rules every second.
    """
    configuration = yaml.safe_load(CONFIGURATION.read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration["rule_files"] = [str(RULES)]
    assert {one["job_name"] for one in configuration["scrape_configs"]} == ports.keys()
    for one in configuration["scrape_configs"]:
        one["static_configs"] = [{"targets": [f"127.0.0.1:{ports[one['job_name']]}"]}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration))
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={folder / 'prometheus'}"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        server = Prometheus(port)
        wait_until(server.ready, "Prometheus is ready")
        yield server
    finally:
        process.terminate()
        process.wait(30)
