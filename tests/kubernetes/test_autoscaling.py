"""The number of workers follows the queue: the rules of the manifests, applied to recorded metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.autoscaling import Trigger, importable, prometheus, replicas
from tests.kubernetes.manifests import ROOT, of_kind, read, roles

RECORD = (Path(__file__).parent / "recorded_metrics.txt").read_text()
SUBMITTED, STARTED, SCORED = 35, 206, 231
"""The seconds of the record at which work was waiting, at which a worker had begun, and at which all was scored."""


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    found: dict[str, Any] = of_kind(read("autoscaling"), "ScaledObject")["scoreline-worker"]["spec"]
    return found


def test_the_age_is_that_of_the_model_that_is_served(spec: dict[str, Any]) -> None:
    age = Trigger.of(spec["triggers"][0])
    served = roles("overlays/cpu")["worker"].variables["SCORELINE_MODEL_NAME"]
    assert f'model="{served}"' in age.query


def test_the_queries_read_metrics_that_the_api_tells(spec: dict[str, Any]) -> None:
    told = set(re.findall(r"scoreline_[a-z_]+", (ROOT / "api" / "metrics.py").read_text()))
    for trigger in spec["triggers"]:
        asked = set(re.findall(r"scoreline_[a-z_]+", trigger["metadata"]["query"]))
        assert asked
        assert asked <= told
        assert asked <= set(re.findall(r"scoreline_[a-z_]+", RECORD)), "it is in the record"


def evaluated(spec: dict[str, Any], folder: Path, record: str, until: int) -> dict[str, dict[int, float | None]]:
    """Return what a real Prometheus says of each trigger's query at each poll."""
    seconds = range(0, until, spec["pollingInterval"])
    with prometheus(folder, record) as server:
        return {one.query: server.values(one.query, seconds) for one in map(Trigger.of, spec["triggers"])}


@pytest.mark.slow
def test_workers_come_with_the_age_of_the_queue_and_go_when_all_is_scored(spec: dict[str, Any], tmp_path: Path) -> None:
    end = SCORED + spec["cooldownPeriod"] + 120
    values = evaluated(spec, tmp_path, importable(RECORD, end), end)
    count = replicas(spec, values)

    assert {number for second, number in count.items() if second < SUBMITTED} == {0}, "nothing waits"
    first = next(second for second, number in count.items() if number)
    assert first <= SUBMITTED + 2 * spec["pollingInterval"], "the first worker comes with the first work"
    rising = [number for second, number in count.items() if second <= STARTED]
    assert rising == sorted(rising), "the older the queue, the more workers"
    assert max(rising) == 3, "one for each minute that the oldest has waited"
    assert all(count[second] for second in count if first <= second <= SCORED + spec["cooldownPeriod"]), (
        "none leaves while something waits or is being scored, or soon after"
    )
    falling = [number for second, number in count.items() if second > SCORED]
    assert falling == sorted(falling, reverse=True), "they go one after the other"
    assert falling[-1] == 0, "the last one goes, too"


@pytest.mark.slow
def test_workers_stay_while_the_database_is_away_or_the_metrics_are(spec: dict[str, Any], tmp_path: Path) -> None:
    """What is missing is not a zero."""

    def second(line: str) -> int:
        return int(line.rpartition(" ")[2]) if line[:1] not in ("#", "") else 0

    down = [
        re.sub(r"^(scoreline_database_up) 1 ", r"\1 0 ", line)
        for line in RECORD.splitlines()
        if second(line) < 120 or line.startswith("scoreline_database_up")
    ]
    away = [line if second(line) >= 120 else line.replace("_up 0 ", "_up 1 ") for line in down]
    gone = [line for line in RECORD.splitlines() if second(line) < 120]
    records = {"away": importable("\n".join(away), 1200), "gone": importable("\n".join(gone))}
    for name, record in records.items():
        folder = tmp_path / name
        folder.mkdir()
        values = evaluated(spec, folder, record, 1200)
        for query, of_query in values.items():
            assert {value for second, value in of_query.items() if second >= 135} == {None}, query
        count = replicas(spec, values)
        assert count[105] == 2
        assert count[max(count)] == 2, name
