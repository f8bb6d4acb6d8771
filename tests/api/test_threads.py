"""Threads: no tenant has all of those for SQL or for text, and those for SQL are never all in use for tenants."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import ModuleType
from typing import Any

import pytest

from api.routes import dry_run, job_items, score
from api.routes import jobs as job_routes
from api.text_process.body_reader import SMALL_BYTES
from api.threads import SQL_THREADS, TEXT_THREADS, THREADS_EACH, Threads
from jobs.queue.read import list_jobs
from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key
from tests.api.serving import RunningApi, eventually


@pytest.mark.parametrize(("processes", "of_one", "of_two"), [(1, 6, 9), (8, 2, 4), (64, 2, 3)])
def test_tenants_leave_threads_to_each_other_and_to_the_service(processes: int, of_one: int, of_two: int) -> None:
    async def scene() -> None:
        threads, go_on, at_work = Threads(processes), threading.Event(), list[str]()

        def work(name: str) -> str:
            at_work.append(name)
            assert go_on.wait(20)
            return name

        async def several(tenant: str) -> list[str]:
            return await asyncio.gather(*(threads.sql_of(tenant, work, tenant) for _ in range(SQL_THREADS)))

        async def until(count: int) -> None:
            async with asyncio.timeout(20):
                while len(at_work) < count:
                    await asyncio.sleep(0.005)

        a = asyncio.create_task(several("a"))
        try:
            await until(of_one)
            b = asyncio.create_task(several("b"))
            await until(of_two)
            assert await threads.sql(str, 5) == "5"
            assert at_work == ["a"] * of_one + ["b"] * (of_two - of_one)
        finally:
            go_on.set()
        assert await a + await b == ["a"] * SQL_THREADS + ["b"] * SQL_THREADS

    asyncio.run(scene())


def test_the_statements_of_one_tenant_leave_threads_to_another(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def slow(database: Database, tenant: str, **options: Any) -> Any:
        assert tenant == "other" or go_on.wait(20)
        return list_jobs(database, tenant, **options)

    monkeypatch.setattr(job_routes, "list_jobs", slow)
    with closing(Database.open(api.store)) as store:
        key, _ = create_key(store, "other", "laptop", frozenset(Scope))
    with api.client_with(key) as other, ThreadPoolExecutor(2 * SQL_THREADS) as pool:
        lists = [pool.submit(api.client.get, "/v1/jobs") for _ in range(2 * SQL_THREADS)]
        try:
            eventually(lambda: api.app.state.service.threads._turns._waiting, "requests wait for their turn")
            assert other.get("/v1/jobs").status_code == 200
            assert not any(future.done() for future in lists)
        finally:
            go_on.set()
        assert {future.result().status_code for future in lists} == {200}


QUERY: dict[str, Any] = {"query": "The capital of", "items": [" France is", ""], "label_token_ids": [70, 71]}


@pytest.mark.parametrize(
    ("module", "function", "method", "path", "options"),
    [
        (job_routes, "encode_job", "GET", "/v1/jobs/{job}", {}),
        (job_routes, "encode_page", "GET", "/v1/jobs/{job}/scores", {}),
        (job_routes, "encode_lines", "GET", "/v1/jobs/{job}/scores", {"headers": {"Accept": "application/x-ndjson"}}),
        (job_items, "_show", "GET", "/v1/jobs/{job}/items?index=0", {}),
        (dry_run, "_foresee", "POST", "/v1/jobs", {"json": QUERY | {"dry_run": True}}),
        (score, "encode_scoring", "POST", "/v1/score", {"json": QUERY, "headers": {"Idempotency-Key": "again"}}),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" not in value else "",
)
def test_the_answers_of_one_tenant_leave_threads_to_another(
    api: RunningApi,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    function: str,
    method: str,
    path: str,
    options: dict[str, Any],
) -> None:
    job = api.wait(api.submit(**QUERY)["id"])
    if method == "POST":
        assert api.client.request(method, path, **options).status_code == 200
    encode, go_on, at_work = getattr(module, function), threading.Event(), list[int]()

    def slow(*args: Any, **kwargs: Any) -> Any:
        at_work.append(1)
        assert go_on.wait(20)
        return encode(*args, **kwargs)

    monkeypatch.setattr(module, function, slow)
    waiting = api.app.state.service.threads._text_turns._waiting
    asked = 2 * TEXT_THREADS
    with closing(Database.open(api.store)) as store:
        key, _ = create_key(store, "other", "laptop", frozenset(Scope))
    with api.client_with(key) as other, ThreadPoolExecutor(asked) as pool:
        answers = [pool.submit(api.client.request, method, path.format(job=job["id"]), **options) for _ in range(asked)]
        try:
            eventually(lambda: len(at_work) + sum(map(len, waiting.values())) == asked, "all have asked for a thread")
            assert len(at_work) == THREADS_EACH
            text = {"text": " " * (SMALL_BYTES + 1)}
            assert other.post("/v1/tokenize", json=text).status_code == 200
            assert not any(future.done() for future in answers)
        finally:
            go_on.set()
        assert {future.result().status_code for future in answers} == {200}
