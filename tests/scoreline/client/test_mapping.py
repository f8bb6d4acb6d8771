"""``map``: many queries, with results in order, bounded memory, and patience where the service is busy."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from scoreline import (
    AsyncClient,
    Client,
    InvalidRequest,
    MapProgress,
    QuotaExceeded,
    ScorelineError,
    ScoreResult,
    TimedOut,
)
from scoreline.client.exchange import sending
from scoreline.client.operations.jobs import PAGE_ITEMS
from tests.scoreline.client.unreliable import BROKEN, Got, Reply, answering, passed_on, refused
from tests.scoreline.running import Up

LABELS = [1, 2]


def numbered(count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield pairs, each of which has other items, and one item more than the one before."""
    for n in range(count):
        yield f"query {n}", [f"item {n} {m}" for m in range(n + 1)]


def test_results_come_in_the_order_of_the_pairs(client: Client, shared_up: Up) -> None:
    found = list(client.map(numbered(20), label_token_ids=LABELS, concurrency=4))
    assert [len(result.scores) for result in found] == list(range(1, 21))
    query, items = list(numbered(8))[7]
    assert found[7].scores == client.score(query, items, label_token_ids=LABELS).scores
    assert found[7].labels == (1, 2)

    async def mapped(pairs: Any) -> list[list[list[float]]]:
        async with AsyncClient(shared_up.url) as client:
            return [result.scores async for result in client.map(pairs, label_token_ids=LABELS)]

    async def slowly() -> AsyncIterator[tuple[str, list[str]]]:
        for pair in numbered(20):
            yield pair

    expected = [result.scores for result in found]
    assert asyncio.run(mapped(numbered(20))) == asyncio.run(mapped(slowly())) == expected


def test_pairs_are_read_no_faster_than_results_are_taken(client: Client) -> None:
    read = 0

    def endless() -> Iterator[tuple[str, list[str]]]:
        nonlocal read
        for read in itertools.count(1):
            yield "query", [f"item {read}"]

    results = client.map(endless(), label_token_ids=LABELS, concurrency=3)
    for taken in range(1, 10):
        next(results)
        assert taken <= read <= taken + 3
    results.close()  # type: ignore[attr-defined]
    assert "scoreline" not in [thread.name for thread in threading.enumerate()]


def test_a_pair_that_fails_ends_the_iteration_or_is_yielded_in_its_place(client: Client) -> None:
    pairs = [("a", ["b"]), ("", ["b"]), ("c", ["d", "e"])]
    results = client.map(pairs, label_token_ids=LABELS, concurrency=1)
    assert len(next(results).scores) == 1
    with pytest.raises(InvalidRequest, match="query"):
        next(results)
    told: list[MapProgress] = []
    found = list(client.map(pairs, label_token_ids=LABELS, errors="yield", progress=told.append))
    assert [type(one) for one in found] == [ScoreResult, InvalidRequest, ScoreResult]
    assert told[-1] == MapProgress(pairs=3, failed_pairs=1, items=3, total_pairs=3)
    assert [one.pairs for one in told] == [1, 2, 3]


def test_a_mistake_in_the_options_is_found_before_a_pair_is_read(client: Client) -> None:
    def unread() -> Iterator[tuple[str, list[str]]]:
        raise AssertionError
        yield

    with pytest.raises(TypeError, match="softmax"):
        client.map(unread(), label_token_ids=LABELS, softmax=True)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="concurrency"):
        client.map(unread(), label_token_ids=LABELS, concurrency=0)


def test_a_pair_may_have_options_of_its_own(client: Client) -> None:
    pairs: list[Any] = [("a", ["b"]), ("a", ["b"], {"label_token_ids": [3, 4, 5], "apply_softmax": True})]
    plain, own = client.map(pairs, label_token_ids=LABELS)
    assert plain.scores == client.score("a", ["b"], label_token_ids=LABELS).scores
    assert own.scores == client.score("a", ["b"], label_token_ids=[3, 4, 5], apply_softmax=True).scores
    with pytest.raises(TypeError, match="softmax"):
        list(client.map([("a", ["b"], {"softmax": True})], label_token_ids=LABELS))  # type: ignore[typeddict-unknown-key]


def test_the_same_map_with_a_key_scores_nothing_again(client: Client) -> None:
    options: dict[str, Any] = {"label_token_ids": LABELS, "idempotency_key": "the-map"}
    first = list(client.map(numbered(5), **options))
    again = list(client.map(numbered(7), **options))
    assert [one.id for one in again[:5]] == [one.id for one in first]
    assert len({one.id for one in again}) == 7


@pytest.mark.parametrize(
    ("status", "code", "more"),
    [(503, "overloaded", {}), (429, "quota_exceeded", {"x-should-retry": "false"}), (429, "rate_limit_exceeded", {})],
)
def test_a_busy_service_is_waited_for(
    shared_up: Up, monkeypatch: pytest.MonkeyPatch, status: int, code: str, more: dict[str, str]
) -> None:
    monkeypatch.setattr(sending, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(sending, "LONGEST_PAUSE_SECONDS", 0.01)
    left = 6

    def answer(got: Got) -> Reply:
        nonlocal left
        if got.method == "POST" and left > 0:
            left -= 1
            return refused(status, code, **{"Retry-After": "0"}, **more)
        return passed_on(shared_up.url, got)

    with answering(answer) as server, Client(server.url, retry_seconds=0) as client:
        assert len(list(client.map(numbered(3), label_token_ids=LABELS, concurrency=2))) == 3
        assert left == 0
        left = 1_000
        with pytest.raises(TimedOut, match=r"not submitted within 0\.05 s"):
            list(client.map(numbered(3), label_token_ids=LABELS, timeout=0.05))


@pytest.mark.parametrize("failure", [BROKEN, Reply(503, b"<html>the service restarts</html>")])
def test_an_outage_at_any_moment_is_waited_for(shared_up: Up, monkeypatch: pytest.MonkeyPatch, failure: Reply) -> None:
    monkeypatch.setattr(sending, "FIRST_PAUSE_SECONDS", 0.01)
    seen: set[object] = set()

    def answer(got: Got) -> Reply:
        """Fail once for each kind of request."""
        kind = (got.method, got.path.partition("?")[0], got.headers.get("Prefer"))
        if kind not in seen:
            seen.add(kind)
            return failure
        return passed_on(shared_up.url, got)

    one, large, many = [("a", ["b"])], [("a", [f"item {n}" for n in range(PAGE_ITEMS + 1)])], [*numbered(20)]
    with answering(answer) as server, Client(server.url, retry_seconds=0) as client:
        for pairs in (one, large, many):
            seen.clear()
            found = list(client.map(pairs, label_token_ids=LABELS))
            assert [len(result.scores) for result in found] == [len(items) for _, items in pairs]


def test_a_quota_that_never_has_room_is_an_error() -> None:
    refusal = refused(429, "quota_exceeded", **{"x-should-retry": "false"})
    with answering(lambda _: refusal) as server, Client(server.url) as client:
        found: list[ScoreResult | ScorelineError]
        found = list(client.map(numbered(2), label_token_ids=LABELS, errors="yield"))
        assert [type(one) for one in found] == [QuotaExceeded] * 2
