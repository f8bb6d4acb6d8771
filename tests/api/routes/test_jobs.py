"""Jobs over HTTP: submit, read, wait, page, stream, list, cancel and delete."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx2
import numpy as np
import pytest
from numpy.testing import assert_allclose

from jobs.queue.ending import delete
from scoring.layout import ChunkWork, GroupWork, LabelScores, ScoredChunk
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api, score_chunk
from tests.api.tiny_model import TinyModel
from tests.databases import ON_BOTH, quick_on
from tests.jobs.interleaving import READ_JOB, once_after

Fresh = tuple[RunningApi, StandInWorker]

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is", " Japan is"], "label_token_ids": [70, 71]}


@ON_BOTH
def test_a_job_is_accepted_scored_and_read(fresh: Fresh, model: TinyModel) -> None:
    api, worker = fresh
    worker.gate.clear()
    before = time.time()
    response = api.client.post("/v1/jobs", json=BODY | {"metadata": {"run": "7"}, "priority": "bulk"})
    job = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == f"/v1/jobs/{job['id']}"
    assert int(response.headers["retry-after"]) >= 1
    assert job["id"].startswith("job_")
    assert (job["object"], job["status"], job["model"], job["priority"]) == ("scoring.job", "queued", "tiny", "bulk")
    assert job["metadata"] == {"run": "7"}
    assert job["progress"] == {"total_items": 2, "scored_items": 0}
    assert abs(job["created_at"] - before) < 5
    assert job["started_at"] is job["finished_at"] is job["error"] is None
    assert "result" not in job
    assert api.client.get(job["urls"]["self"]).json() == job | {"queued_seconds": ANY}

    worker.gate.set()
    done = api.wait(job["id"])
    assert (done["status"], done["progress"]["scored_items"]) == ("succeeded", 2)
    assert done["created_at"] <= done["started_at"] <= done["finished_at"]
    expected = model.text_scores(BODY["query"], BODY["items"], BODY["label_token_ids"])
    assert_allclose(done["result"]["scores"], expected, rtol=1e-6)
    assert done["result"]["object"] == "scoring"
    assert done["result"]["usage"] == done["usage"]


def test_a_job_says_how_long_it_has_waited_for_a_worker(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()
    first, second = (api.submit(**BODY)["id"] for _ in range(2))

    def waited(job_id: str) -> float:
        seconds: float = api.client.get(f"/v1/jobs/{job_id}").json()["queued_seconds"]
        return seconds

    eventually(lambda: waited(first) > 0.05, "it goes on waiting")
    cancelled = api.client.post(f"/v1/jobs/{second}/cancel").json()
    assert cancelled["queued_seconds"] == pytest.approx(cancelled["finished_at"] - cancelled["created_at"], abs=0.002)
    worker.gate.set()
    done = api.wait(first)
    assert done["queued_seconds"] == pytest.approx(done["started_at"] - done["created_at"], abs=0.002)
    assert waited(first) == done["queued_seconds"] > 0.05
    assert waited(second) == cancelled["queued_seconds"]


def test_calls_are_listed_where_they_are_asked_for(fresh: Fresh) -> None:
    api, _ = fresh
    job = api.client.post("/v1/jobs", json=BODY).json()["id"]
    calls = [api.client.post("/v1/score", json=BODY).json()["id"] for _ in range(2)]

    def listed(**wanted: Any) -> list[str]:
        return [one["id"] for one in api.client.get("/v1/jobs", params=wanted).json()["data"]]

    assert listed() == [job]
    assert listed(calls=True) == calls[::-1]
    assert listed(calls=True, limit=1, after=calls[1]) == calls[:1]
    assert listed(calls=True, status="failed") == []
    both = api.client.get("/v1/jobs", params={"calls": True, "batch": "batch_1"})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "calls")


def test_the_result_of_a_job_equals_the_answer_of_a_call(fresh: Fresh) -> None:
    api, _ = fresh
    body = BODY | {"return_logprobs": True, "return_logits": True}
    result = api.wait(api.submit(**body)["id"])["result"]
    call = api.score(**body)
    for name in ("id", "created"):
        result.pop(name), call.pop(name)
    assert result == call


def test_a_job_without_items_succeeds_at_once(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()
    job = api.submit(**BODY | {"items": []})
    assert job["status"] == "succeeded"
    assert api.client.get(job["urls"]["self"]).json()["result"]["scores"] == []
    assert api.client.get(job["urls"]["scores"]).json() == {
        "object": "list",
        "data": [],
        "has_more": False,
        "next_offset": None,
    }


def test_unknown_fields_and_null_options_of_a_job_are_accepted(api: RunningApi) -> None:
    job = api.submit(**BODY, model=None, metadata=None, priority=None, expires_in=None, webhook=None, timeout=5)
    assert [warning for warning in job["warnings"] if "timeout" in warning]
    assert job["priority"] == "normal"


def test_a_result_too_large_for_the_job_object_is_read_in_pages_and_lines(fresh: Fresh, model: TinyModel) -> None:
    api, _ = fresh
    items = [f" item {n}" for n in range(1001)]
    job = api.wait(api.submit(query="The", items=items, label_token_ids=[70])["id"])
    assert (job["status"], job["progress"]["scored_items"]) == ("succeeded", 1001)
    assert "result" not in job
    lines: list[dict[str, Any]] = []
    while True:
        page = api.client.get(job["urls"]["scores"], params={"offset": len(lines), "limit": 300}).json()
        lines += page["data"]
        assert page["next_offset"] == (len(lines) if page["has_more"] else None)
        if not page["has_more"]:
            break
    assert [line["index"] for line in lines] == list(range(1001))
    assert_allclose([line["scores"] for line in lines], model.text_scores("The", items, [70]), rtol=1e-6)

    with api.client.stream("GET", job["urls"]["scores"], headers={"accept": "application/x-ndjson"}) as response:
        assert response.headers["content-type"].startswith("application/x-ndjson")
        assert [json.loads(line) for line in response.iter_lines()] == lines


@quick_on("sqlite")
def test_json_lines_of_a_job_that_is_deleted_meanwhile_break_off_and_do_not_end_as_if_they_were_whole(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, _ = fresh
    monkeypatch.setattr("api.routes.jobs.PAGE_ITEMS", 2)
    job = api.wait(api.submit(query="The", items=[""] * 3, label_token_ids=[70])["id"])
    database = api.app.state.service.store.database
    # Each page is read in two statements. The job is deleted between those of the second page.
    once_after(database, READ_JOB, partial(delete, database, "default", job["id"]), after=2)
    with api.client.stream("GET", job["urls"]["scores"], headers={"accept": "application/x-ndjson"}) as response:
        lines = response.iter_lines()
        assert [json.loads(next(lines))["index"] for _ in range(2)] == [0, 1]
        with pytest.raises(httpx2.RemoteProtocolError, match="incomplete"):
            next(lines)


@quick_on("sqlite")
def test_a_job_that_is_deleted_while_it_is_read_is_answered_as_missing(fresh: Fresh) -> None:
    api, _ = fresh
    database = api.app.state.service.store.database
    for path in ("self", "scores"):
        job = api.wait(api.submit(**BODY)["id"])
        once_after(database, READ_JOB, partial(delete, database, "default", job["id"]))
        response = api.client.get(job["urls"][path])
        assert (response.status_code, response.json()["error"]["code"]) == (404, "job_not_found")


@quick_on("sqlite")
def test_stored_scores_that_are_not_finite_are_no_internal_error(fresh: Fresh) -> None:
    """An earlier version could store such scores."""
    api, worker = fresh

    def infinite(group: GroupWork, chunk: ChunkWork) -> ScoredChunk:
        sound = score_chunk(group, chunk)
        return ScoredChunk(sound.id, LabelScores(sound.scores.logits + np.float32(np.inf), sound.scores.logprobs), 0)

    worker.score_chunk = infinite
    job = api.wait(api.submit(**BODY)["id"])
    assert (job["status"], "result" in job) == ("succeeded", False)
    answers = [api.client.get(job["urls"]["scores"]), api.client.post("/v1/score", json=BODY)]
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [(409, "job_failed")] * 2


def test_the_job_object_includes_a_result_of_exactly_the_most_items(api: RunningApi) -> None:
    job = api.wait(api.submit(query="The", items=[""] * 1000, label_token_ids=[70])["id"])
    assert len(job["result"]["scores"]) == 1000


def test_pages_of_a_running_job_show_its_scores_so_far_and_lines_are_refused(fresh: Fresh) -> None:
    api, worker = fresh
    scored = threading.Semaphore(1)

    def one_then_wait(group: GroupWork, chunk: ChunkWork) -> ScoredChunk:
        scored.acquire()
        return score_chunk(group, chunk)

    worker.score_chunk = one_then_wait
    worker.budget = 1
    job = api.submit(query="The", items=[f" item {n}" for n in range(600)], label_token_ids=[70])
    scores = job["urls"]["scores"]
    eventually(lambda: api.client.get(scores).json()["data"], "the first chunk is scored")
    some = api.client.get(scores, params={"limit": 1000}).json()
    running = api.client.get(job["urls"]["self"]).json()
    assert running["status"] == "running"
    assert len(some["data"]) == running["progress"]["scored_items"] < 600
    lines = api.client.get(scores, headers={"accept": "application/x-ndjson"})
    assert (lines.status_code, lines.json()["error"]["code"]) == (409, "job_not_finished")

    cancelled = api.client.post(job["urls"]["cancel"]).json()
    assert cancelled["status"] == "cancelled"
    assert api.client.get(scores, params={"limit": 1000}).json()["data"] == some["data"]
    lines = api.client.get(scores, headers={"accept": "application/x-ndjson"})
    assert (lines.status_code, lines.json()["error"]["code"]) == (409, "job_cancelled")
    scored.release(100)


def test_a_failed_job_shows_its_error(fresh: Fresh) -> None:
    api, worker = fresh
    worker.fails = True
    job = api.wait(api.submit(**BODY)["id"])
    assert (job["status"], job["error"]["code"]) == ("failed", "internal_error")
    assert "result" not in job
    lines = api.client.get(job["urls"]["scores"], headers={"accept": "application/x-ndjson"})
    assert (lines.status_code, lines.json()["error"]["code"]) == (409, "job_failed")


def test_a_job_past_its_deadline_expires(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()
    job = api.submit(**BODY, expires_in=0.1)
    assert job["expires_at"] == pytest.approx(job["created_at"] + 0.1, abs=0.01)
    assert api.wait(job["id"])["status"] == "expired"


def test_cancelling_a_job_that_has_ended_changes_nothing(fresh: Fresh) -> None:
    api, worker = fresh
    done = api.wait(api.submit(**BODY)["id"])
    assert api.client.post(done["urls"]["cancel"]).json()["status"] == "succeeded"
    worker.gate.clear()
    waiting = api.submit(**BODY)
    first = api.client.post(waiting["urls"]["cancel"])
    second = api.client.post(waiting["urls"]["cancel"])
    assert first.status_code == second.status_code == 200
    assert first.json() == second.json()
    assert first.json()["status"] == "cancelled"


@ON_BOTH
def test_a_deleted_job_and_its_scores_are_gone_whether_it_had_ended_or_not(fresh: Fresh) -> None:
    api, worker = fresh
    done = api.wait(api.submit(**BODY)["id"])
    worker.gate.clear()
    for job in (done, api.submit(**BODY)):
        response = api.client.delete(job["urls"]["self"])
        assert response.json() == {"id": job["id"], "object": "scoring.job", "deleted": True}
        for method, path in [("GET", "self"), ("GET", "scores"), ("POST", "cancel"), ("DELETE", "self")]:
            again = api.client.request(method, job["urls"][path])
            assert (again.status_code, again.json()["error"]["code"]) == (404, "job_not_found")
    assert api.client.get("/v1/jobs").json()["data"] == []


@ON_BOTH
def test_jobs_are_listed_newest_first_in_pages_and_by_status(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()
    ids = [api.submit(**BODY)["id"] for _ in range(5)][::-1]
    api.client.post(f"/v1/jobs/{ids[2]}/cancel")
    first = api.client.get("/v1/jobs", params={"limit": 3}).json()
    rest = api.client.get("/v1/jobs", params={"limit": 3, "after": first["data"][-1]["id"]}).json()
    assert [job["id"] for job in first["data"] + rest["data"]] == ids
    assert (first["has_more"], rest["has_more"]) == (True, False)
    cancelled = api.client.get("/v1/jobs", params={"status": "cancelled"}).json()["data"]
    assert [job["id"] for job in cancelled] == [ids[2]]
    assert len(api.client.get("/v1/jobs", params={"limit": 5}).json()["data"]) == 5
    assert api.client.get("/v1/jobs", params={"limit": 5}).json()["has_more"] is False


def test_a_read_that_prefers_to_wait_is_answered_when_the_job_ends(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()
    job = api.submit(**BODY)
    released = threading.Timer(0.3, worker.gate.set)
    released.start()
    started = time.monotonic()
    response = api.client.get(job["urls"]["self"], headers={"Prefer": "wait=15"})
    assert 0.2 < time.monotonic() - started < 10
    assert response.json()["status"] == "succeeded"
    assert response.headers["preference-applied"] == "wait=15"


def test_a_read_whose_wait_times_out_is_answered_with_the_unfinished_job(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()
    job = api.submit(**BODY)
    started = time.monotonic()
    response = api.client.get(job["urls"]["self"], headers={"Prefer": "respond-async, wait=1"})
    assert 0.9 < time.monotonic() - started < 10
    assert (response.status_code, response.json()["status"]) == (200, "queued")


@pytest.mark.parametrize(
    ("prefer", "applied"),
    [
        ("wait=999999", "wait=60"),
        ("wait=abc", None),
        ("wait=-1", None),
        ("return=minimal", None),
        ("handling=lenient; wait=3", None),
        ('Wait = "5"', "wait=5"),
        ("wait=0", "wait=0"),
    ],
)
def test_a_wait_preference_is_limited_or_ignored_and_never_an_error(
    api: RunningApi, prefer: str, applied: str | None
) -> None:
    job = api.submit(**BODY | {"items": []})
    response = api.client.get(job["urls"]["self"], headers={"Prefer": prefer})
    assert response.status_code == 200
    assert response.headers.get("preference-applied") == applied


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (lambda api, job: api.client.post(job["urls"]["cancel"]), "cancelled"),
        (lambda api, job: api.client.delete(job["urls"]["self"]), None),
        (lambda api, job: None, "expired"),
    ],
    ids=["cancelled", "deleted", "expired"],
)
def test_a_wait_ends_at_once_when_its_job_is_cancelled_deleted_or_expires(
    model: TinyModel, sqlite_url: str, tmp_path: Path, end: Callable[[RunningApi, Any], Any], status: str | None
) -> None:
    """Polling is rare here, so whatever ends the job must announce it."""
    settings = {"waiter_poll_seconds": 1000.0}
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **settings) as (api, _):
        job = api.submit(**BODY, expires_in=1 if status == "expired" else None)
        answers: list[Any] = []
        read = partial(api.client.get, job["urls"]["self"], headers={"Prefer": "wait=15"})
        waiting = threading.Thread(target=lambda: answers.append(read()))
        started = time.monotonic()
        waiting.start()
        eventually(lambda: api.app.state.service.waiters.job_ids, "a request waits")
        end(api, job)
        waiting.join()
        assert time.monotonic() - started < 12
        assert [answer.json().get("status") for answer in answers] == [status]


def test_a_wait_ends_without_a_notice_because_waiting_jobs_are_polled(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    """The worker announces on another socket, so the API gets no notice."""
    settings = {"waiter_poll_seconds": 0.1}
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **settings) as (api, _):
        worker = api.worker(bell_socket=str(tmp_path / "nowhere"))
        worker.start()
        try:
            started = time.monotonic()
            assert api.score(**BODY)["scores"]
            assert time.monotonic() - started < 5
        finally:
            worker.stop()


def test_models_are_listed_with_their_live_workers(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    settings = {"worker_fresh_seconds": 1.0}
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **settings) as (api, _):
        (listed,) = api.client.get("/v1/models").json()["data"]
        assert (listed["id"], listed["object"], listed["live_workers"]) == ("tiny", "model", 0)
        assert (listed["max_model_len"], listed["vocabulary"]) == (512, model.vocabulary)
        worker = api.worker()
        worker.start()
        eventually(lambda: api.client.get("/v1/models").json()["data"][0]["live_workers"] == 1, "it is listed")
        worker.stop()
        eventually(
            lambda: api.client.get("/v1/models").json()["data"][0]["live_workers"] == 0,
            "a silent worker does not count",
        )


def test_tokenize_returns_the_tokens_that_scoring_uses(api: RunningApi, model: TinyModel) -> None:
    answer = api.client.post("/v1/tokenize", json={"text": "The capital of Paris"}).json()
    assert answer["tokens"] == model.encode("The capital of Paris")
    assert answer["count"] == len(answer["tokens"]) == len(answer["pieces"])
    assert (answer["model"], answer["max_model_len"]) == ("tiny", 512)
    assert api.client.post("/v1/tokenize", json={"text": ""}).json()["count"] == 0
