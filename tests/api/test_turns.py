"""Tenants take turns at the threads, and at the process, that read bodies."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx2
import pytest

from api.text_process.body_reader import SMALL_BYTES
from api.threads import TEXT_THREADS
from api.turns import Turns
from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key
from scoring.tokenizing.row_encoder import RowEncoder
from scoring.tokenizing.tokenization import TextTokenizer
from tests.api.serving import RunningApi, eventually


def test_a_tenant_with_many_long_bodies_waits_for_each_other_tenant_between_them() -> None:
    async def order() -> list[str]:
        turns, taken = Turns(), list[str]()

        async def work(tenant: str) -> None:
            async with turns.turn(tenant):
                taken.append(tenant)
                await asyncio.sleep(0)

        await asyncio.gather(*map(work, ["a", "a", "a", "a", "b", "b", "c"]))
        return taken

    assert "".join(asyncio.run(order())) == "aabcaba"


def test_a_turn_is_passed_on_by_those_who_gave_up() -> None:
    async def taken_after_giving_up() -> bool:
        turns = Turns()

        async def work() -> None:
            async with turns.turn("a"):
                pass

        async with turns.turn("a"):
            waiting = [asyncio.create_task(work()) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
        # The turn is the second one's now, which gives up before it begins.
        waiting[1].cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError, asyncio.CancelledError, type(None)]
        async with turns.turn("b"):
            return True

    async def in_time() -> bool:
        async with asyncio.timeout(10):
            return await taken_after_giving_up()

    assert asyncio.run(in_time())


def test_a_turn_is_passed_on_by_work_that_fails() -> None:
    async def taken_after_a_failure() -> bool:
        turns = Turns()
        with pytest.raises(ZeroDivisionError):
            async with turns.turn("a"):
                raise ZeroDivisionError
        async with asyncio.timeout(10), turns.turn("b"):
            return True

    assert asyncio.run(taken_after_a_failure())


def test_a_tenant_leaves_places_to_the_others_and_the_tenants_that_wait_get_free_places_in_turn() -> None:
    async def working() -> list[str]:
        turns, at_work, seen = Turns(places=3, places_each=2), list[str](), list[str]()
        done = {name: asyncio.Event() for name in ("a1", "a2", "a3", "a4", "b1", "c1")}

        async def work(name: str) -> None:
            async with turns.turn(name[0]):
                at_work.append(name)
                await done[name].wait()
                at_work.remove(name)

        async def see() -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            seen.append(" ".join(at_work))

        tasks = [asyncio.create_task(work(name)) for name in done]
        await see()
        for name in done:
            done[name].set()
            await see()
        await asyncio.gather(*tasks)
        return seen

    assert asyncio.run(working()) == ["a1 a2 b1", "a2 b1 a3", "b1 a3 c1", "b1 c1 a4", "b1 c1", "c1", ""]


def test_the_bodies_of_one_tenant_leave_threads_to_another(api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    encode = TextTokenizer.row_encoder

    def slow(self: TextTokenizer, query: str, **options: Any) -> RowEncoder:
        assert query != "slow" or go_on.wait(20)
        return encode(self, query, **options)

    monkeypatch.setattr(TextTokenizer, "row_encoder", slow)
    body = {"query": "slow", "items": ["a"], "label_token_ids": [5]}
    with closing(Database.open(api.store)) as store:
        key, _ = create_key(store, "other", "laptop", frozenset(Scope))
    with api.client_with(key) as other, ThreadPoolExecutor(3 * TEXT_THREADS) as pool:
        calls = [pool.submit(call, api, body) for _ in range(2 * TEXT_THREADS)]
        lines = [json.dumps(body | {"items": None}), '"a"']
        uploads = [pool.submit(upload, api, "\n".join(lines)) for _ in range(TEXT_THREADS)]
        try:
            eventually(lambda: api.app.state.service.threads._text_turns._waiting, "bodies wait for their turn")
            assert other.post("/v1/score", json=body | {"query": "quick"}).status_code == 200
            assert not any(future.done() for future in [*calls, *uploads])
        finally:
            go_on.set()
        assert {call.result().status_code for call in calls} == {200}
        assert {call.result().status_code for call in uploads} == {202}


def call(api: RunningApi, body: dict[str, Any]) -> httpx2.Response:
    """Call with a body that a thread reads, because it is not small."""
    content = json.dumps(body).encode() + b" " * SMALL_BYTES
    return api.client.post("/v1/score", content=content, headers={"Content-Type": "application/json"})


def upload(api: RunningApi, content: str) -> httpx2.Response:
    return api.client.post("/v1/jobs", content=content, headers={"Content-Type": "application/x-ndjson"})
