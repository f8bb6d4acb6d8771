"""Outages of the database and of Redis."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from api.threads import SQL_THREADS
from bell.redis_bell import RedisBell
from tests.api.serving import KEY, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import quick_on
from tests.services import PostgresServer, RedisServer

SHARED = ("/v1/models", "/readyz")
"""Paths whose answers are the same for everybody who asks within a second."""

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70]}


def test_requests_during_an_outage_of_the_database_get_503_and_succeed_after_it(
    model: TinyModel, postgres_url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    settings = {"waiter_poll_seconds": 0.1}
    with running_api(model.directory, postgres_url, tmp_path, with_worker=False, **settings) as (api, _):
        job = api.submit(**BODY)
        answers: list[Any] = []
        waiting = threading.Thread(
            target=lambda: answers.append(api.client.get(job["urls"]["self"], headers={"Prefer": "wait=20"}))
        )
        waiting.start()
        eventually(lambda: api.app.state.service.waiters.job_ids, "somebody waits")
        postgres.stop()
        try:
            for method, path in [
                ("POST", "/v1/jobs"),
                ("POST", "/v1/score"),
                ("GET", "/v1/jobs"),
                ("GET", job["urls"]["self"]),
                ("GET", job["urls"]["scores"]),
                ("POST", job["urls"]["cancel"]),
                ("DELETE", job["urls"]["self"]),
                ("GET", "/v1/models"),
                ("GET", "/readyz"),
            ]:
                # What was found a moment before is still the answer of some.
                eventually(lambda path=path: path not in SHARED or api.client.get(path).status_code == 503, path)  # type: ignore[misc]
                response = api.client.request(method, path, json=BODY if method == "POST" else None)
                assert (response.status_code, response.json()["error"]["code"]) == (503, "storage_unavailable"), path
                assert int(response.headers["retry-after"]) >= 1
                assert "postgres" not in response.text.lower()
                assert "127.0.0.1" not in response.text
            assert api.client.get("/livez").status_code == 200
            assert api.client.post("/v1/tokenize", json={"text": "a"}).status_code == 200
            # Errors that do not depend on the database are still reported.
            assert api.client.post("/v1/jobs", json=BODY | {"query": ""}).json()["error"]["code"] == "empty_query"
        finally:
            postgres.start()
        eventually(lambda: api.client.get("/readyz").status_code == 200, "it is ready")
        assert [job["id"] for job in api.client.get("/v1/jobs").json()["data"]] == [job["id"]]
        worker = api.worker()
        worker.start()
        try:
            waiting.join(20)
            assert [answer.json()["status"] for answer in answers] == ["succeeded"]
        finally:
            worker.stop()


def test_requests_to_a_frozen_database_get_503_and_hold_no_thread(
    model: TinyModel, postgres_url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"statement_seconds": 0.3, "waiter_poll_seconds": 0.1}
    with running_api(model.directory, postgres_url, tmp_path, **settings) as (api, _):
        before = api.submit(**BODY)
        api.wait(before["id"])
        requests = [("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("POST", "/v1/score"), ("GET", before["urls"]["self"])]
        requests *= 2 * SQL_THREADS // len(requests)
        with postgres.frozen(), ThreadPoolExecutor(len(requests)) as threads:
            # Without a deadline, the client would give up after its own time.
            answers = threads.map(
                lambda request: api.client.request(*request, json=BODY if request[0] == "POST" else None), requests
            )
            for answer in answers:
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
                assert int(answer.headers["retry-after"]) >= 1
        eventually(lambda: api.client.post("/v1/jobs", json=BODY).status_code == 202, "jobs are accepted again")
        eventually(lambda: api.client.get(before["urls"]["self"]).status_code == 200, "and read")
        assert api.wait(before["id"])["status"] == "succeeded"
        for job in api.client.get("/v1/jobs").json()["data"]:
            assert api.wait(job["id"])["status"] == "succeeded"


@pytest.mark.parametrize("refusal", ["only_reading", "without_right"])
def test_calls_while_the_database_can_not_be_written_to_get_503_and_none_is_lost(
    refusal: str, model: TinyModel, postgres: PostgresServer, postgres_template: str, tmp_path: Path
) -> None:
    name = postgres.create_database(postgres_template)
    url = postgres.url_of_plain_user(name)
    answers: list[tuple[int, Any]] = []
    is_over = threading.Event()
    with running_api(model.directory, url, tmp_path, waiter_poll_seconds=0.1, lease_seconds=1.0) as (api, _):

        def call() -> None:
            with api.client_with(KEY) as client:
                while not is_over.is_set():
                    answer = client.post("/v1/jobs", json=BODY)
                    answers.append((answer.status_code, answer.json()))

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        eventually(lambda: answers, "jobs are accepted")
        with postgres.only_reading() if refusal == "only_reading" else postgres.without_right("INSERT", "jobs", name):
            eventually(lambda: api.client.get("/readyz").status_code == 503, "it is not ready")
            eventually(lambda: "scoreline_database_up 0.0" in api.client.get("/metrics").text, "its metrics say so")
            assert api.client.get("/livez").status_code == 200
            refused = api.client.post("/v1/score", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_unavailable")
            assert int(refused.headers["retry-after"]) >= 1
        eventually(lambda: api.client.get("/readyz").status_code == 200, "it is ready again")
        eventually(lambda: api.client.post("/v1/score", json=BODY).status_code == 200, "calls are answered again")
        is_over.set()
        for caller in callers:
            caller.join()
        assert {status for status, _ in answers} <= {202, 503}
        for status, answer in answers:
            if status == 202:
                assert api.wait(answer["id"])["status"] == "succeeded"
    postgres.drop_database(name)


def test_a_store_without_its_schema_is_not_ready(model: TinyModel, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    with running_api(model.directory, url, tmp_path, with_worker=False) as (api, _):
        assert api.client.get("/livez").status_code == 200
        response = api.client.get("/readyz")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "storage_unavailable")


@quick_on("postgres")
def test_jobs_are_accepted_and_calls_answered_without_redis(
    model: TinyModel, store_url: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    settings = {"redis_url": redis_server.url, "bell_socket": None, "waiter_poll_seconds": 0.1}
    redis_server.stop()
    try:
        with running_api(model.directory, store_url, tmp_path, with_worker=False, **settings) as (api, _):
            worker = api.worker(bell_socket=str(tmp_path / "nowhere"))
            worker.start()
            try:
                job = api.submit(**BODY)
                assert api.wait(job["id"])["status"] == "succeeded"
                assert api.score(**BODY)["scores"]
                eventually(lambda: api.client.get("/readyz").status_code == 200, "it is ready")
            finally:
                worker.stop()
    finally:
        redis_server.start()


def test_rings_and_notices_go_through_redis(
    model: TinyModel, sqlite_url: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    settings = {
        "redis_url": redis_server.url,
        "bell_socket": None,
        "bell_prefix": "of-this-test",
        "waiter_poll_seconds": 1000.0,
    }
    with (
        running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **settings) as (api, _),
        redis.Redis.from_url(redis_server.url) as client,
    ):
        job = api.submit(**BODY)
        eventually(
            lambda: [key for key in client.scan_iter("of-this-test:*") if client.type(key) == b"list"],
            "a ring is in its queue",
        )
        eventually(lambda: client.pubsub_channels("of-this-test:*"), "the API listens for ends")
        worker = api.worker(bell_socket=str(tmp_path / "nowhere"))
        worker.announcing_bell = RedisBell(redis_server.url, api.bell.bell_prefix)
        worker.start()
        try:
            assert api.wait(job["id"])["status"] == "succeeded"
            assert api.score(**BODY)["scores"]
        finally:
            worker.stop()
            worker.announcing_bell.close()
