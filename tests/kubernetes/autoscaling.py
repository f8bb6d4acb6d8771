"""What KEDA and the HorizontalPodAutoscaler make of recorded metrics, and a Prometheus that has recorded them."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.services import free_port, wait_until
from tests.telemetry.monitoring import program

START = 1_700_000_000
"""When the records begin, in Unix time: any time in the past will do."""

_SAMPLE = re.compile(r"(?P<series>\S+) (?P<value>\S+) (?P<second>\d+)$")


def importable(record: str, until: int = 0) -> str:
    """Return a record in the format that Prometheus imports; its last values go on until a later second."""
    lines = [line for line in record.splitlines() if line.startswith("# TYPE")]
    last: dict[str, tuple[str, int]] = {}
    by_family: dict[str, list[str]] = {line.split()[2]: [line] for line in lines}
    end = 0
    for line in record.splitlines():
        if found := _SAMPLE.match(line):
            second = int(found["second"])
            family = by_family[found["series"].partition("{")[0]]
            family.append(f"{found['series']} {found['value']} {START + second}")
            last[found["series"]] = (found["value"], second)
            end = max(end, second)
    for series, (value, second) in last.items():
        if second == end:
            more = range(end + 5, until, 5)
            by_family[series.partition("{")[0]] += [f"{series} {value} {START + later}" for later in more]
    return "\n".join(line for family in by_family.values() for line in family) + "\n# EOF\n"


class Prometheus:
    """A Prometheus that answers queries about a record."""

    def __init__(self, url: str) -> None:
        self._url = url

    def values(self, query: str, seconds: Sequence[int]) -> dict[int, float | None]:
        """Return the value of a query at each of these seconds, which are evenly spaced; None where it has none."""
        answer = httpx2.get(
            f"{self._url}/api/v1/query_range",
            params={
                "query": query,
                "start": START + seconds[0],
                "end": START + seconds[-1],
                "step": seconds[1] - seconds[0],
            },
            trust_env=False,
        ).json()
        assert answer["status"] == "success", answer
        series = answer["data"]["result"]
        assert len(series) <= 1, "KEDA refuses a query with several series"
        points = series[0]["values"] if series else []
        found = {int(time) - START: float(value) for time, value in points}
        return {second: found.get(second) for second in seconds}


@contextmanager
def prometheus(folder: Path, record: str) -> Iterator[Prometheus]:
    """Start a Prometheus whose past is a record. Skips the test where there is none."""
    promtool, server = program("promtool"), program("prometheus")
    (folder / "record.txt").write_text(record)
    (folder / "configuration.yml").write_text("{}\n")
    data = folder / "data"
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", folder / "record.txt", data],
        check=True,
        capture_output=True,
    )
    port = free_port()
    options = {
        "config.file": folder / "configuration.yml",
        "storage.tsdb.path": data,
        "storage.tsdb.retention.time": "100y",
        "web.listen-address": f"127.0.0.1:{port}",
        # A series ends when it is no longer told. What is imported has no marks of that: a short look back serves.
        "query.lookback-delta": "9s",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [server, *(f"--{name}={value}" for name, value in options.items())], stdout=log, stderr=log
        )
    try:
        url = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                return httpx2.get(f"{url}/-/ready", trust_env=False).status_code == 200
            except httpx2.TransportError:
                return False

        wait_until(ready, "Prometheus to be ready")
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger of type prometheus with metricType AverageValue, as its documentation describes it."""

    query: str
    threshold: float
    activation: float

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Trigger:
        """Read it from a ScaledObject."""
        assert (document["type"], document["metricType"]) == ("prometheus", "AverageValue")
        given = document["metadata"]
        assert given["ignoreNullValues"] == "false", "no value is an error, not a zero"
        return cls(given["query"], float(given["threshold"]), float(given["activationThreshold"]))


def replicas(spec: Mapping[str, Any], values: Mapping[str, Mapping[int, float | None]]) -> dict[int, int]:
    """Return how many workers run at each second.

    values: those of each trigger's query, at each poll. KEDA starts the first worker when a trigger is above its
    activation threshold, and stops the last one when none was for ``cooldownPeriod``. In between, the autoscaler wants
    the largest of value / threshold. Whatever it wanted lately holds it up, and its policies bound each step.
    """
    triggers = [Trigger.of(one) for one in spec["triggers"]]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    steady = behavior["scaleDown"]["stabilizationWindowSeconds"]
    (up,), (down,) = behavior["scaleUp"]["policies"], behavior["scaleDown"]["policies"]
    count, failures, active_at = spec["minReplicaCount"], 0, -math.inf
    wanted: dict[int, int] = {}
    counts: dict[int, int] = {}
    for second in next(iter(values.values())):
        now = [values[trigger.query][second] for trigger in triggers]
        if None in now:
            failures += 1
            fallback = spec["fallback"]
            if failures >= fallback["failureThreshold"]:
                keeps_more = fallback.get("behavior", "static") == "currentReplicasIfHigher"
                count = max(count, fallback["replicas"]) if keeps_more else fallback["replicas"]
            counts[second] = count
            continue
        failures = 0
        known = [(value or 0.0, trigger) for value, trigger in zip(now, triggers, strict=True)]
        if any(value > trigger.activation for value, trigger in known):
            active_at = second
        if count == 0:
            count = int(active_at == second)
        elif second - active_at > spec["cooldownPeriod"]:
            count = spec["minReplicaCount"]
        else:
            want = max(math.ceil(value / trigger.threshold) for value, trigger in known)
            wanted[second] = min(max(want, 1), spec["maxReplicaCount"])
            lately = max(value for then, value in wanted.items() if second - then <= steady)
            if lately > count:
                before = min(value for then, value in counts.items() if second - then <= up["periodSeconds"])
                count = max(count, min(lately, max(before, 1) + up["value"]))
            elif lately < count:
                before = max(value for then, value in counts.items() if second - then <= down["periodSeconds"])
                count = min(count, max(lately, before - down["value"]))
        counts[second] = count
    return counts
