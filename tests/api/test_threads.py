"""The threads for SQL: no tenant has all of them, and all tenants together leave some to the service itself."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from api.routes import jobs as job_routes
from api.threads import SQL_THREADS, Threads
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
