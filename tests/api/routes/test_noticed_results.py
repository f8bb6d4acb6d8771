"""How the result of a call reaches its request, by the notice of its end or by reading: the answer is the same."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.testing import assert_allclose
from sqlalchemy import select
from sqlalchemy.event import listen, remove

from jobs.store.identifiers import new_notice_key
from jobs.store.signed_result import CallResult, sign_result
from jobs.store.tables import jobs
from scoring.layout import LabelScores
from tests.api.every_route import BODY
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import ON_BOTH

Serving = tuple[RunningApi, StandInWorker]

RARELY = 1000.0
"""Seconds between two rounds of something that is not to happen during a test."""

BODIES: dict[str, dict[str, Any]] = {
    "everything": BODY,
    "probabilities": {"query": "Query", "items": ["a", "b", ""], "label_token_ids": [70]},
    "softmax": {"query": "Query", "items": ["a"], "label_token_ids": [70, 71, 72], "apply_softmax": True},
    "sequences": {
        "query": "Query",
        "items": ["a", ""],
        "labels": [" the answer", " no"],
        "label_scoring": "sequence",
        "label_normalization": "tokens",
    },
    "warnings": {"query": [5, 6, 7], "items": [[8], []], "label_token_ids": [70], "no_such_field": 1},
}
LARGE = {"query": "Query", "items": ["a"] * 300, "label_token_ids": [70, 71]}


class HeldBell:
    """Keeps what a worker announces until a test sends it, or something else."""

    def __init__(self, worker: StandInWorker) -> None:
        self.job_ids: list[str] = []
        self.results: dict[str, str] = {}
        self._bell = worker.announcing_bell
        worker.announcing_bell = self

    def ring(self, model: str) -> None:
        self._bell.ring(model)

    def announce(self, job_ids: Sequence[str], results: Mapping[str, str] | None = None) -> None:
        self.results.update(results or {})
        self.job_ids.extend(job_ids)

    def send(self, results: Mapping[str, str] | None = None) -> None:
        """Announce all ended jobs in one message, with these results."""
        self._bell.announce(self.job_ids, results)


@pytest.fixture
def serving(model: TinyModel, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """A server that learns of the end of jobs from notices alone, and sends no statement of its own accord."""
    monkeypatch.setattr("api.models.loading.FOLLOWING_SECONDS", RARELY)
    rare: dict[str, Any] = dict.fromkeys(("waiter_poll_seconds", "sweep_seconds", "batch_poll_seconds"), RARELY)
    with running_api(model.directory, store_url, tmp_path, **rare) as (api, worker):
        assert worker is not None
        # The first calls show that the worker hears the bell, and fill what the server remembers.
        eventually(lambda: api.client.post("/v1/score", json=BODY | {"timeout": 0.5}).status_code == 200, "all is up")
        yield api, worker


@contextmanager
def waiting(api: RunningApi, *bodies: dict[str, Any], **headers: str) -> Iterator[list[Future[httpx2.Response]]]:
    """Call with each of the bodies. Yields when all of the calls wait for the ends of their jobs."""
    limits = httpx2.Limits(max_connections=None)
    before = len(api.app.state.service.waiters.job_ids)
    with (
        httpx2.Client(base_url=api.url, timeout=60, limits=limits, headers=api.client.headers) as client,
        ThreadPoolExecutor(len(bodies)) as pool,
    ):
        calls = [pool.submit(client.post, "/v1/score", json=body, headers=headers) for body in bodies]
        eventually(lambda: len(api.app.state.service.waiters.job_ids) == before + len(bodies), "all calls wait")
        yield calls


@pytest.fixture(autouse=True)
def nothing_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what calls are admitted by looked up before a call is accepted, and not while it waits."""
    monkeypatch.setattr("api.caching.AHEAD", float("inf"))


@contextmanager
def selects(api: RunningApi) -> Iterator[list[str]]:
    """Record what the server sends to the database meanwhile, without beginnings of transactions."""
    sent: list[str] = []
    engine = api.app.state.service.store.database.engine

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("BEGIN"):
            sent.append(statement)

    listen(engine, "before_cursor_execute", record)
    try:
        yield sent
    finally:
        remove(engine, "before_cursor_execute", record)


def answer(call: Future[httpx2.Response]) -> bytes:
    """Return the body of an answer with status 200."""
    response = call.result(30)
    assert response.status_code == 200, response.text
    return response.content


def scores_of(model: TinyModel, body: dict[str, Any]) -> Any:
    return model.text_scores(body["query"], body["items"], body["label_token_ids"])


def notice_key(api: RunningApi, job_id: str) -> bytes:
    with api.app.state.service.store.database.read() as tx:
        key = tx.scalar(select(jobs.c.notice_key).where(jobs.c.id == job_id))
    assert isinstance(key, bytes)
    return key


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_call_that_is_answered_by_its_notice_sends_no_statement(serving: Serving, body: dict[str, Any]) -> None:
    api, worker = serving
    worker.gate.clear()
    key = {"Idempotency-Key": "again"}
    with waiting(api, body, **key) as (call,), selects(api) as sent:
        worker.gate.set()
        by_notice = answer(call)
    assert sent == []
    with selects(api) as sent:
        again = api.client.post("/v1/score", json=body, headers=key)
    assert sent, "the second one reads"
    assert again.headers["idempotency-replayed"] == "true"
    assert again.content == by_notice
    assert 'status="succeeded"' in api.client.get("/metrics").text


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_without_a_result_in_the_notice_the_bytes_of_the_answer_are_the_same(
    serving: Serving, body: dict[str, Any]
) -> None:
    api, worker = serving
    bell = HeldBell(worker)
    worker.gate.clear()
    with waiting(api, body, body) as calls:
        worker.gate.set()
        eventually(lambda: len(bell.job_ids) == 2, "both have ended")
        assert sorted(bell.results) == sorted(bell.job_ids)
        kept = bell.job_ids[0]
        bell.send({kept: bell.results[kept]})
        answers = {json.loads(found)["id"]: found for found in map(answer, calls)}
    assert sorted(answers) == sorted(bell.job_ids)
    for job_id, found in answers.items():
        job = api.client.get(f"/v1/jobs/{job_id}").json()
        result = api.client.get(f"/v1/jobs/{job_id}").content.partition(b'"result":')[2]
        assert result == found + b"}", "the job shows the same bytes"
        assert job["usage"] == json.loads(found)["usage"]


@ON_BOTH
def test_a_hundred_calls_that_wake_together_share_one_read(serving: Serving, model: TinyModel) -> None:
    api, worker = serving
    bell = HeldBell(worker)
    worker.gate.clear()
    bodies = [BODY | {"query": f"Query {n}"} for n in range(100)]
    with waiting(api, *bodies) as calls:
        worker.gate.set()
        eventually(lambda: len(bell.job_ids) == len(bodies), "all have ended")
        with selects(api) as sent:
            bell.send()
            answers = [json.loads(answer(call)) for call in calls]
    assert len(sent) == 1
    assert len({found["id"] for found in answers}) == len(bodies)
    for body, found in zip(bodies, answers, strict=True):
        assert_allclose(found["scores"], scores_of(model, body), rtol=1e-6)


def test_a_large_result_is_read(serving: Serving, model: TinyModel) -> None:
    api, worker = serving
    bell = HeldBell(worker)
    worker.gate.clear()
    with waiting(api, LARGE) as (call,), selects(api) as sent:
        worker.gate.set()
        eventually(lambda: bell.job_ids, "it has ended")
        assert bell.results == {}
        bell.send()
        scores = json.loads(answer(call))["scores"]
    assert len(sent) == 1
    assert_allclose(scores, scores_of(model, LARGE), rtol=1e-6)


@ON_BOTH
def test_a_notice_that_comes_twice_is_harmless(serving: Serving) -> None:
    api, worker = serving
    bell = HeldBell(worker)
    worker.gate.clear()
    with waiting(api, BODY) as (call,):
        worker.gate.set()
        eventually(lambda: bell.job_ids, "it has ended")
        for results in (bell.results, bell.results, {}):
            bell.send(results)
        assert json.loads(answer(call))["id"] == bell.job_ids[0]
    worker.gate.clear()
    with waiting(api, BODY) as (other,):
        bell.send(bell.results)
        bell.job_ids.clear()
        worker.gate.set()
        eventually(lambda: bell.job_ids, "the other one has ended")
        bell.send(bell.results)
        assert json.loads(answer(other))["id"] == bell.job_ids[0]


def made_up(items: int, labels: int) -> CallResult:
    zeros = np.zeros((items, labels), np.float32)
    return CallResult(1.0, 0, LabelScores(zeros, zeros))


def _with_a_wrong_key(bell: HeldBell) -> dict[str, str]:
    return {job_id: sign_result(made_up(2, 2), new_notice_key()) or "" for job_id in bell.job_ids}


def _of_each_other(bell: HeldBell) -> dict[str, str]:
    first, second = bell.job_ids
    return {first: bell.results[second], second: bell.results[first]}


def _without_a_signature(bell: HeldBell) -> dict[str, str]:
    return {job_id: (sign_result(made_up(2, 2), b"") or "").partition(" ")[2] for job_id in bell.job_ids}


def _changed(bell: HeldBell) -> dict[str, str]:
    return {job_id: f"{text[:-4]}AAAA" for job_id, text in bell.results.items()}


@pytest.mark.parametrize("forge", [_with_a_wrong_key, _of_each_other, _without_a_signature, _changed])
def test_a_forged_result_is_not_believed(
    serving: Serving, model: TinyModel, forge: Callable[[HeldBell], dict[str, str]]
) -> None:
    api, worker = serving
    bell = HeldBell(worker)
    worker.gate.clear()
    bodies = [BODY, BODY | {"query": "Another query"}]
    with waiting(api, *bodies) as calls:
        worker.gate.set()
        eventually(lambda: len(bell.job_ids) == 2, "both have ended")
        forged = forge(bell)
        assert forged != bell.results
        with selects(api) as sent:
            bell.send(forged)
            answers = [json.loads(answer(call)) for call in calls]
    assert sent, "the results are read"
    for body, found in zip(bodies, answers, strict=True):
        right = api.client.get(f"/v1/jobs/{found['id']}").json()
        assert found == right["result"]
        assert_allclose(found["scores"], scores_of(model, body), rtol=1e-6)


def test_a_notice_of_a_job_that_has_not_ended_does_not_end_its_call(serving: Serving) -> None:
    api, worker = serving
    bell = HeldBell(worker)
    worker.gate.clear()
    with waiting(api, BODY) as (call,):
        [bell.job_ids] = [api.app.state.service.waiters.job_ids]
        with selects(api) as sent:
            bell.send(_with_a_wrong_key(bell))
            eventually(lambda: sent, "the notice is looked into")
            eventually(lambda: api.app.state.service.waiters.job_ids == bell.job_ids, "the call waits again")
        bell.job_ids.clear()
        worker.gate.set()
        eventually(lambda: bell.job_ids, "now it has ended")
        with selects(api) as sent:
            bell.send(bell.results)
            answer(call)
        assert sent == []


def test_a_call_without_a_notice_is_answered_by_polling(model: TinyModel, store_url: str, tmp_path: Path) -> None:
    with running_api(model.directory, store_url, tmp_path, waiter_poll_seconds=0.05) as (api, worker):
        assert worker is not None
        bell = HeldBell(worker)
        found = api.score(**BODY)
        assert bell.results.keys() == {found["id"]}
        assert found == api.client.get(f"/v1/jobs/{found['id']}").json()["result"]


def test_failed_and_cancelled_calls_are_told_so(serving: Serving) -> None:
    api, worker = serving
    worker.gate.clear()
    with waiting(api, BODY) as (call,):
        [job_id] = api.app.state.service.waiters.job_ids
        api.client.post(f"/v1/jobs/{job_id}/cancel")
        assert call.result(30).json()["error"]["code"] == "job_cancelled"
    with waiting(api, BODY) as (call,):
        [job_id] = api.app.state.service.waiters.job_ids
        api.client.delete(f"/v1/jobs/{job_id}")
        assert call.result(30).json()["error"]["code"] == "job_not_found"
    worker.fails = True
    with waiting(api, BODY) as (call,):
        worker.gate.set()
        assert call.result(30).json()["error"]["code"] == "internal_error"


def test_the_key_of_a_call_is_in_no_answer(serving: Serving) -> None:
    api, _ = serving
    job_id = api.score(**BODY)["id"]
    key = notice_key(api, job_id)
    shown = api.client.get(f"/v1/jobs/{job_id}").text + api.client.get("/v1/jobs").text
    for hidden in (key.hex(), b64encode(key).decode(), repr(key)):
        assert hidden not in shown
    with api.app.state.service.store.database.read() as tx:
        assert tx.scalar(select(jobs.c.notice_key).where(jobs.c.id == api.submit(**BODY)["id"])) is None
