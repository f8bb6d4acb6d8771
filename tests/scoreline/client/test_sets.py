"""Sets: short jobs that come at the same moment are submitted, and awaited, with one request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from scoreline import AsyncClient, Client, InvalidRequest, ScoreResult, TimedOut
from scoreline.client.exchange import sending
from scoreline.client.sets import MAX_ITEMS, SUBMITTED_AT_ONCE, JobSets, Outcome, _Gathering
from tests.scoreline.client.unreliable import BROKEN, Got, Reply, answering, passed_on, refused
from tests.scoreline.running import Up

LABELS = [1, 2]
SETS = "/v1/jobs/sets"


def pairs(count: int, name: str = "query") -> Iterator[tuple[str, list[str]]]:
    for n in range(count):
        yield f"{name} {n}", [f"item {n}"]


def found_alone(client: Client, count: int) -> list[list[list[float]]]:
    return [client.score(query, items, label_token_ids=LABELS).scores for query, items in pairs(count)]


def test_many_pairs_take_few_requests(shared_up: Up) -> None:
    with answering(lambda got: passed_on(shared_up.url, got)) as server, Client(server.url) as client:
        results = list(client.map(pairs(300), label_token_ids=LABELS))
        assert len(server.got) < 60
        assert {got.path.partition("?")[0] for got in server.got if got.method == "POST"} <= {SETS, "/v1/jobs"}
    with Client(shared_up.url) as client:
        assert [result.scores for result in results[:20]] == found_alone(client, 20)


def test_a_lone_pair_is_sent_alone_and_at_once(shared_up: Up) -> None:
    with answering(lambda got: passed_on(shared_up.url, got)) as server, Client(server.url) as client:
        assert len(list(client.map(pairs(1), label_token_ids=LABELS))) == 1
        assert [got.path.partition("?")[0] for got in server.got if got.method == "POST"] == ["/v1/jobs"]
        assert SETS not in [got.path.partition("?")[0] for got in server.got]


def test_a_service_that_knows_no_sets_gets_each_job_alone(shared_up: Up) -> None:
    def answer(got: Got) -> Reply:
        if got.path.startswith(SETS):
            return refused(405, "method_not_allowed") if got.method == "POST" else refused(404, "job_not_found")
        return passed_on(shared_up.url, got)

    with answering(answer) as server, Client(server.url) as client:
        results = [result.scores for result in client.map(pairs(20), label_token_ids=LABELS)]
    with Client(shared_up.url) as client:
        assert results == found_alone(client, 20)


def test_a_text_for_which_a_whole_set_is_refused_fails_its_own_pair_alone(client: Client) -> None:
    mixed = [("a", ["b"]), ("broken \ud800", ["b"]), ("", ["b"]), ("c", ["d"])]
    found: Any = list(client.map(mixed, label_token_ids=LABELS, errors="yield"))
    assert [type(one) for one in found] == [ScoreResult, InvalidRequest, InvalidRequest, ScoreResult]
    assert [found[1].param, found[2].code] == ["query", "empty_query"]


def test_a_set_whose_answer_was_lost_is_stored_once(shared_up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "FIRST_PAUSE_SECONDS", 0.01)
    lost: list[list[str]] = []

    def answer(got: Got) -> Reply:
        reply = passed_on(shared_up.url, got)
        if got.method == "POST" and got.path == SETS and not lost:
            assert isinstance(reply.body, bytes)
            lost.append([entry["body"]["id"] for entry in json.loads(reply.body)["data"]])
            return BROKEN
        return reply

    with answering(answer) as server, Client(server.url) as client:
        results = list(client.map(pairs(50, "lost"), label_token_ids=LABELS))
    assert len(results) == 50
    assert set(lost[0]) <= {result.id for result in results}


def test_a_key_means_the_same_in_a_set_as_alone(client: Client) -> None:
    key = "key-\\u0062"
    results = list(client.map(pairs(20, "keys"), label_token_ids=LABELS, idempotency_key=key))
    again = [
        client.submit(query, items, label_token_ids=LABELS, idempotency_key=f"{key}-{n}").id
        for n, (query, items) in enumerate(pairs(20, "keys"))
    ]
    assert [result.id for result in results] == again


def test_a_job_that_takes_too_long_is_given_up_alone(shared_up: Up) -> None:
    async def waited() -> list[object]:
        async with AsyncClient(shared_up.url) as client:
            sets = JobSets(client)
            jobs = [await sets.submit(query, items, label_token_ids=LABELS) for query, items in pairs(3, "late")]
            for job in jobs:
                await client.wait(job)
            with shared_up.worker_frozen():
                late = await sets.submit("query", ["item"], label_token_ids=LABELS)
                waits = [sets.wait(late.id, 1, 0.2), *(sets.wait(job.id, 1, 20) for job in jobs)]
                return await asyncio.gather(*waits, return_exceptions=True)

    found = asyncio.run(waited())
    assert isinstance(found[0], TimedOut)
    assert [getattr(job, "status", job) for job in found[1:]] == ["succeeded"] * 3


def test_the_results_of_jobs_with_many_items_are_read_as_well(client: Client, shared_up: Up) -> None:
    many = [(f"query {n}", [f"item {n} {m}" for m in range(230 + n)]) for n in range(12)]
    found = list(client.map(many, label_token_ids=LABELS))
    assert [len(result.scores) for result in found] == [len(items) for _, items in many]
    assert found[3].scores == client.score(*many[3], label_token_ids=LABELS).scores


def test_who_asks_at_the_moment_when_all_senders_have_just_ended_gets_an_answer() -> None:
    """Two senders end at the same moment, and one whom they have served asks again before anybody has noticed."""

    async def asked() -> Outcome:
        both_send = asyncio.Event()
        senders = 0

        async def work(taken: list[str]) -> list[Outcome]:
            nonlocal senders
            senders += 1
            if senders == SUBMITTED_AT_ONCE:
                asyncio.get_running_loop().call_soon(both_send.set)
            await both_send.wait()
            return [None] * len(taken)

        gathering: _Gathering[str] = _Gathering(work, SUBMITTED_AT_ONCE)

        async def ask_twice() -> Outcome:
            await gathering.ask("once", MAX_ITEMS)
            return await gathering.ask("again", MAX_ITEMS)

        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            twice = tasks.create_task(ask_twice())
            for _ in range(SUBMITTED_AT_ONCE - 1):
                tasks.create_task(gathering.ask("once", MAX_ITEMS))
        return twice.result()

    assert asyncio.run(asked()) is None
