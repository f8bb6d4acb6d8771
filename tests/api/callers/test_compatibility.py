"""What the API answers and logs if the workers do not serve the same as the API."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from api.callers import compatibility
from api.callers.compatibility import compare
from checkpoints.card import ModelCard
from jobs.queue.worker_registry import live_workers, register, unregister
from jobs.store.database import Database
from jobs.store.records import WorkerRecord
from scoring.error_codes import RequestError
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.jobs.conftest import HandClock, use_clock

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70]}
PATHS = ["/v1/jobs", "/v1/score"]

Change = Callable[[ModelCard], ModelCard]
CHANGES: dict[str, tuple[Change, str]] = {
    "tokenizer": (lambda card: replace(card, tokenizer_fingerprint="0123456789abcdef"), " here, 0123456789ab there"),
    "vocabulary": (lambda card: replace(card, vocabulary=99), "tokens here, 99 there"),
    "context": (lambda card: replace(card, context_length=64), "context: 512 tokens here, 64 there"),
    "delimiter": (lambda card: replace(card, delimiter=0), "delimiter: none here, 0 there"),
}


class Workers:
    """Adds and removes rows of live workers, without any worker."""

    def __init__(self, database: Database, card: ModelCard) -> None:
        self.database = database
        self.card = card

    def add(self, name: str, change: Change = lambda card: card, **facts: Any) -> None:
        values: dict[str, Any] = {"weights_fingerprint": "w" * 64, "device": "none", "dtype": "float32"} | facts
        register(self.database, WorkerRecord(name, change(self.card), **values))

    def remove(self, name: str) -> None:
        unregister(self.database, name)


@pytest.fixture
def alone(model: TinyModel, sqlite_template: Path, tmp_path: Path) -> Iterator[tuple[RunningApi, Workers]]:
    """A server without a worker."""
    path = tmp_path / "scoreline.db"
    shutil.copy(sqlite_template, path)
    with running_api(model.directory, f"sqlite:///{path}", tmp_path, with_worker=False) as (api, _):
        service = api.app.state.service
        yield api, Workers(service.store.database, service.reading.card)


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("path", PATHS)
def test_work_is_refused_while_the_workers_serve_something_else(
    alone: tuple[RunningApi, Workers], path: str, what: str
) -> None:
    api, workers = alone
    change, says = CHANGES[what]
    workers.add("other", change)
    response = api.client.post(path, json=BODY)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "model_unavailable")
    assert int(response.headers["retry-after"]) >= 1
    assert "serve something else" in error["message"]
    assert "\n" not in error["message"]
    assert api.client.get("/v1/jobs").json()["data"] == []

    response = api.client.get("/readyz")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "model_unavailable")
    assert what in error["message"]
    assert says in error["message"]
    assert int(response.headers["retry-after"]) >= 1
    assert api.client.get("/v1/models").json()["data"][0]["live_workers"] == 0


def test_differences_are_logged_once_per_change_and_not_per_request(alone: tuple[RunningApi, Workers]) -> None:
    api, workers = alone
    workers.add("other", CHANGES["tokenizer"][0])
    with capture_logs() as logs:

        def lines() -> list[tuple[str, Any]]:
            ours = [entry for entry in logs if entry["event"] != "request"]
            return [(entry["log_level"], entry.get("differences")) for entry in ours]

        for path in PATHS * 3:
            assert api.client.post(path, json=BODY).status_code == 503
        here = api.app.state.service.reading.card.tokenizer_fingerprint[:12]
        tokenizer = f"tokenizer or classes: {here} here, 0123456789ab there"
        assert lines() == [("error", [tokenizer])]
        workers.add("another like it", CHANGES["tokenizer"][0])
        assert api.client.get("/readyz").status_code == 503
        assert len(lines()) == 1
        workers.add("a third", CHANGES["context"][0])
        for path in PATHS:
            assert api.client.post(path, json=BODY).status_code == 503
        assert lines()[1:] == [("error", ["context: 512 tokens here, 64 there", tokenizer])]
        for name in ("other", "another like it", "a third"):
            workers.remove(name)
        for _ in range(2):
            api.submit(**BODY)
        assert lines()[2:] == [("info", None)]


def test_one_matching_worker_is_enough(alone: tuple[RunningApi, Workers]) -> None:
    api, workers = alone
    workers.add("other", CHANGES["tokenizer"][0])
    assert api.client.post("/v1/jobs", json=BODY).status_code == 503
    worker = api.worker()
    worker.start()
    try:
        # Immediately after a refusal, because refusals are not cached.
        assert api.wait(api.submit(**BODY)["id"])["status"] == "succeeded"
        assert api.score(**BODY)["scores"]
        ready = api.client.get("/readyz")
        assert (ready.status_code, ready.json()["workers"]) == (200, {"live": 2, "matching": 1})
        (warning,) = ready.json()["warnings"]
        assert "0123456789ab there" in warning
        eventually(lambda: api.client.get("/v1/models").json()["data"][0]["live_workers"] == 1, "it is shown")
    finally:
        worker.stop()


def test_without_workers_jobs_are_accepted_and_the_server_is_ready(alone: tuple[RunningApi, Workers]) -> None:
    api, _ = alone
    assert api.submit(**BODY)["status"] == "queued"
    response = api.client.post("/v1/score", json=BODY)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "model_unavailable")
    assert "wait for one" in response.json()["error"]["message"]
    card = api.app.state.service.reading.card
    assert api.client.get("/readyz").json() == {
        "status": "ok",
        "model": {
            "id": "tiny",
            "tokenizer": card.tokenizer_fingerprint[:12],
            "vocabulary": card.vocabulary,
            "max_model_len": 512,
            "delimiter": None,
        },
        "workers": {"live": 0, "matching": 0},
        "warnings": [],
    }


def test_retry_after_grows_with_the_time_without_a_matching_worker(
    alone: tuple[RunningApi, Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, workers = alone
    compatibility, now = api.app.state.service.acceptance.doors.default.compatibility, HandClock()
    monkeypatch.setattr("api.callers.compatibility.time.monotonic", now)
    monkeypatch.setattr(compatibility._throttled, "_clock", now)

    def told_after(seconds: float) -> float | None:
        now.turn(seconds)
        with pytest.raises(RequestError) as refusal:
            compatibility.check(waits=False)
        return refusal.value.retry_after

    assert [told_after(seconds) for seconds in (0, 4, 16, 1_000)] == [5.0, 5.0, 20.0, 60.0]
    workers.add("same")
    compatibility.check(waits=False)
    workers.remove("same")
    assert told_after(10) == 5.0, "a matching worker resets the time"


def test_workers_of_other_models_do_not_count(alone: tuple[RunningApi, Workers]) -> None:
    api, workers = alone
    workers.add("other", lambda card: replace(card, name="another", tokenizer_fingerprint="0"))
    assert api.submit(**BODY)["status"] == "queued"
    assert api.client.get("/readyz").json()["workers"] == {"live": 0, "matching": 0}


def test_a_worker_that_was_not_seen_lately_does_not_count(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, worker_fresh_seconds=20.0) as (api, _):
        service = api.app.state.service
        workers = Workers(service.store.database, service.reading.card)
        clock = HandClock()
        use_clock(service.store.database, clock)
        workers.add("other", CHANGES["tokenizer"][0])
        assert api.client.get("/readyz").status_code == 503
        clock.turn(21.0)
        eventually(lambda: api.client.get("/readyz").status_code == 200, "it is ready again")
        assert api.submit(**BODY)["status"] == "queued"


@pytest.mark.parametrize("path", PATHS)
def test_a_request_without_items_needs_no_worker(alone: tuple[RunningApi, Workers], path: str) -> None:
    """Without items, nothing can be scored wrongly."""
    api, workers = alone
    workers.add("other", CHANGES["tokenizer"][0])
    assert api.client.post(path, json=BODY | {"items": []}).is_success


def test_a_burst_of_submissions_shares_one_query_for_the_workers(
    alone: tuple[RunningApi, Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, workers = alone
    workers.add("same")
    asked = list[Database]()

    def recorded(database: Database, fresh_seconds: float) -> list[WorkerRecord]:
        asked.append(database)
        return live_workers(database, fresh_seconds)

    # Who follows the catalogue asks for the workers, too, at any time, but not for the comparison.
    monkeypatch.setattr(compatibility, "live_workers", recorded)
    throttled = api.app.state.service.acceptance.doors.default.compatibility._throttled
    monkeypatch.setattr(throttled, "_max_seconds", 3600.0)
    monkeypatch.setattr(throttled, "_seconds", 3600.0)
    monkeypatch.setattr(throttled, "_entry", None)
    for _ in range(20):
        api.submit(**BODY)
    assert len(asked) == 1
    monkeypatch.setattr(throttled, "_entry", None)
    api.submit(**BODY)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"weights_fingerprint": "5" * 64}, f"weights differ among workers ({'5' * 12}, {'w' * 12})"),
        ({"dtype": "bfloat16"}, "dtypes differ among workers (bfloat16, float32)"),
    ],
)
def test_different_weights_or_dtypes_of_workers_cause_a_warning(
    alone: tuple[RunningApi, Workers], facts: dict[str, Any], says: str
) -> None:
    api, workers = alone
    workers.add("one")
    assert api.client.get("/readyz").json()["warnings"] == []
    workers.add("two", **facts)
    with capture_logs() as logs:
        eventually(lambda: api.client.get("/readyz").json()["warnings"], "they are looked at again")
        for _ in range(3):
            ready = api.client.get("/readyz")
            assert (ready.status_code, ready.json()["workers"]) == (200, {"live": 2, "matching": 2})
            (warning,) = ready.json()["warnings"]
            assert says in warning
        assert api.submit(**BODY)["status"] == "queued"
    assert [entry["warnings"] for entry in logs if entry["log_level"] == "warning"] == [[warning]]


def test_weights_of_workers_that_serve_something_else_are_not_compared() -> None:
    card = ModelCard("tiny", 512, 400, "here")
    one = WorkerRecord("one", card, "w", "none", "float32")
    other = WorkerRecord("two", replace(card, tokenizer_fingerprint="there"), "x", "none", "bfloat16")
    (warning,) = compare(card, [one, other]).warnings
    assert "weights" not in warning
    assert "tokenizer" in warning


def test_a_worker_with_another_tokenizer_does_not_get_accepted_jobs(
    fresh: tuple[RunningApi, StandInWorker], model: TinyModel
) -> None:
    """The job is accepted while a matching worker is live, and waits for that worker afterwards."""
    api, right = fresh
    right.gate.clear()
    job = api.submit(**BODY)
    service = api.app.state.service
    changed = CHANGES["tokenizer"][0](service.reading.card)
    wrong = StandInWorker(api.store, changed, api.bell.bell_socket or "")
    claims: list[bool] = []
    work = wrong._work

    def counted() -> bool:
        claims.append(work())
        return claims[-1]

    wrong._work = counted  # type: ignore[method-assign]
    wrong.start()
    try:
        eventually(lambda: len(claims) >= 3, "the other worker has looked for work")
        assert not any(claims)
        assert api.client.get(job["urls"]["self"]).json()["status"] == "queued"
        right.gate.set()
        done = api.wait(job["id"])
        assert done["status"] == "succeeded"
        (expected,) = model.text_scores(BODY["query"], BODY["items"], [70])
        assert done["result"]["scores"] == [pytest.approx(expected.tolist())]
    finally:
        wrong.stop()
