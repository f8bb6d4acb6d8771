"""What a tenant sees of the workers and of its own waiting work."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jobs.queue import statistics
from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is", " Japan"], "label_token_ids": [70]}


def overview(api: RunningApi, key: str | None = None) -> dict[str, Any]:
    with api.client_with(key) as client:
        answer = client.get("/v1/overview")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_it_tells_of_the_model_and_its_live_workers(fresh: tuple[RunningApi, StandInWorker]) -> None:
    found = overview(fresh[0])
    assert (found["model"], found["warnings"]) == ("tiny", [])
    (worker,) = found["workers"]
    assert (worker["device"], worker["dtype"], worker["tokens_per_second"]) == ("none", "float32", None)
    nothing = {"chunks": 0, "tokens": 0, "oldest_seconds": 0, "estimated_seconds": 0}
    assert found["waiting"] == nothing


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every look a new one."""
    monkeypatch.setattr("api.callers.admission.GOOD_FOR_SECONDS", 0.0)
    monkeypatch.setattr("api.callers.compatibility.GOOD_FOR_SECONDS", 0.0)
    monkeypatch.setattr("api.caching.MAX_TIME_SHARE", 1e9)


def test_a_tenant_sees_its_own_waiting_work_and_no_other(
    uncached: None, fresh: tuple[RunningApi, StandInWorker]
) -> None:
    api, worker = fresh
    worker.gate.clear()
    database = Database.open(api.store)
    key, _ = create_key(database, "acme", "of acme", [Scope.READ])
    database.close()
    api.submit(**BODY)
    eventually(lambda: overview(api)["waiting"]["chunks"] == 1, "the job waits")
    waiting = overview(api)["waiting"]
    assert waiting["tokens"] > 0
    assert waiting["estimated_seconds"] is None  # the worker has measured no pace
    assert overview(api, key)["waiting"] == {"chunks": 0, "tokens": 0, "oldest_seconds": 0, "estimated_seconds": 0}
    worker.gate.set()
    eventually(lambda: overview(api)["waiting"]["chunks"] == 0, "the job is scored")


def test_all_watchers_share_one_look(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.callers.admission.GOOD_FOR_SECONDS", 600.0)
    looks = []
    count = statistics.count_waiting

    def counted(*args: Any, **kwargs: Any) -> Any:
        looks.append(kwargs)
        return count(*args, **kwargs)

    monkeypatch.setattr("api.callers.admission.count_waiting", counted)
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False) as (api, _):
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: overview(api)["waiting"]["chunks"], range(24)))
        assert found == [0] * 24
    assert len(looks) == 1
