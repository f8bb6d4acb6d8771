"""Requests are repeated where that may help, and only there; never is anything done twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import httpx2
import pytest

from scoreline import (
    AsyncClient,
    Client,
    Conflict,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    RateLimited,
    RequestTooLarge,
    ScorelineError,
    TimedOut,
    Unauthorized,
    Unavailable,
    UnexpectedResponse,
    Unreachable,
)
from scoreline.client.exchange import bodies, sending
from scoreline.client.exchange.flow import Exchange, Request, Sleep
from scoreline.client.mapping import pause_of
from tests.scoreline.client.unreliable import BROKEN, Got, Reply, answering, in_turn, passed_on, refused
from tests.scoreline.running import Up
from tests.services import free_port

TOKENS = Reply(200, {"tokens": [1, 2]})


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the pauses between repetitions short."""
    monkeypatch.setattr(sending, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(sending, "LONGEST_PAUSE_SECONDS", 0.02)


def test_pauses_stay_short_however_often_a_request_has_failed() -> None:
    error = Overloaded("overloaded", "it is busy", 503, retry_after=0.0)
    repetitions = sending.Repetitions(60.0)
    pauses = [pause for _ in range(1_100) if (pause := repetitions.pause_after(error)) is not None]
    assert len(pauses) == 1_100
    assert max(*pauses, pause_of(error, 1_100)) <= sending.LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (refused(400, "empty_query"), InvalidRequest),
        (refused(400, "a_code_of_a_later_version"), InvalidRequest),
        (refused(413, "request_too_large"), RequestTooLarge),
        (refused(401, "invalid_api_key"), Unauthorized),
        (refused(403, "insufficient_scope"), PermissionDenied),
        (refused(404, "job_not_found"), NotFound),
        (refused(409, "job_not_finished"), Conflict),
        (refused(429, "quota_exceeded", **{"x-should-retry": "false", "Retry-After": "7"}), QuotaExceeded),
        (refused(500, "internal_error"), InternalError),
        (refused(504, "timeout", **{"x-should-retry": "false"}), TimedOut),
        (Reply(500, b"<html>oh</html>"), UnexpectedResponse),
        (Reply(200, b"<html>hello</html>"), UnexpectedResponse),
    ],
)
def test_an_error_that_repeating_does_not_change_is_raised_at_once(first: Reply, kind: type[ScorelineError]) -> None:
    with answering(in_turn(first, TOKENS)) as server, Client(server.url) as client:
        with pytest.raises(kind) as raised:
            client.tokenize("a")
        assert len(server.got) == 1
    error = raised.value
    assert type(error) is kind
    assert error.status == first.status
    if isinstance(first.body, dict):
        assert (error.code, error.message) == (first.body["error"]["code"], first.body["error"]["message"])
        assert (error.param, error.request_id) == ("items[3]", "the-request")
    if kind is QuotaExceeded:
        assert error.retry_after == 7
    if kind is TimedOut:
        assert isinstance(error, TimeoutError)


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (BROKEN, Unreachable),
        (refused(503, "overloaded"), Overloaded),
        (refused(503, "model_unavailable"), Unavailable),
        (refused(503, "storage_unavailable"), Unavailable),
        (refused(429, "rate_limit_exceeded"), RateLimited),
        (refused(429, "too_many_open_requests"), RateLimited),
        (refused(409, "idempotency_in_progress"), Conflict),
        (Reply(502, b"<html>bad gateway</html>"), UnexpectedResponse),
        (Reply(504, b"<html>gateway timeout</html>"), UnexpectedResponse),
    ],
)
def test_an_error_that_may_pass_is_repeated_with_one_key_until_the_time_is_over(
    first: Reply, kind: type[ScorelineError], job_object: dict[str, object]
) -> None:
    with answering(in_turn(first, first, Reply(202, job_object))) as server, Client(server.url) as client:
        assert client.submit("a", ["b"], label_token_ids=[1]).id == "job_1"
        assert len(server.got) == 3
        assert len({got.body for got in server.got}) == 1
        assert len({got.headers["Idempotency-Key"] for got in server.got}) == 1
        client.submit("a", ["b"], label_token_ids=[1])
        assert server.got[3].headers["Idempotency-Key"] != server.got[0].headers["Idempotency-Key"]
    with answering(in_turn(first)) as server, Client(server.url, retry_seconds=0.3) as client:
        with pytest.raises(kind) as raised:
            client.submit("a", ["b"], label_token_ids=[1])
        assert type(raised.value) is kind
        assert len(server.got) > 1
    with answering(in_turn(first)) as server, Client(server.url, retry_seconds=0) as client:
        with pytest.raises(kind):
            client.submit("a", ["b"], label_token_ids=[1])
        assert len(server.got) == 1


def test_a_refusal_with_retry_after_is_repeated_no_earlier_and_not_if_the_time_is_over_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    with answering(in_turn(refused(503, "overloaded", **{"Retry-After": "3"}), TOKENS)) as server:
        with Client(server.url, retry_seconds=10) as client:
            assert client.tokenize("a") == [1, 2]
        assert len(slept) == 1
        assert slept[0] >= 3
    with answering(in_turn(refused(503, "overloaded", **{"Retry-After": "30"}), TOKENS)) as server:
        with Client(server.url, retry_seconds=10) as client, pytest.raises(Overloaded) as raised:
            client.tokenize("a")
        assert raised.value.retry_after == 30
        assert len(server.got) == 1


def test_a_call_to_a_service_that_nobody_has_reached_gives_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "FIRST_CONTACT_SECONDS", 0.05)
    with Client(f"http://127.0.0.1:{free_port()}") as client, pytest.raises(Unreachable):
        client.tokenize("a")


def test_the_first_failure_decides_how_long_an_absent_service_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    service = sending.Service("http://nowhere", timeout=45, retry_seconds=20, outage_seconds=300)
    flow = sending.send(service, Request("GET", "/v1/jobs/job_1", dict), patient=True)
    lost = Unreachable("unreachable", "the connection broke off")
    assert next(flow) == Exchange(Request("GET", "/v1/jobs/job_1", dict), 45)
    service.was_reached = True  # as of a connection that broke off
    assert isinstance(flow.throw(lost), Sleep)
    for moment, seconds in ((290.0, 45.0), (299.0, 45.0), (330.0, 15.0)):
        now = moment
        assert next(flow) == Exchange(Request("GET", "/v1/jobs/job_1", dict), seconds)
        now = 299.0
        assert isinstance(flow.throw(lost), Sleep)
    next(flow)
    now = 301.0
    with pytest.raises(Unreachable):
        flow.throw(lost)


@pytest.mark.parametrize(
    ("status", "code", "until"),
    [
        (0, "unreachable", 100.0),
        (503, "server_stopping", 100.0),
        (503, "server_starting", 100.0),
        (503, "model_unavailable", 100.0),
        (429, "rate_limit_exceeded", 20.0),
    ],
)
def test_a_call_waits_for_a_service_that_is_away_as_long_as_for_its_scores(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, until: float
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    service = sending.Service("http://nowhere", timeout=30, retry_seconds=20, outage_seconds=300, was_reached=True)
    failure = ScorelineError(code, "not now", status)
    for last, goes_on in ((until - 1, True), (until + 1, False)):
        flow = sending.send(service, Request("POST", "/v1/score", dict, seconds=100.0))
        now = 0.0
        next(flow)
        assert isinstance(flow.throw(failure), Sleep)
        next(flow)
        now = last
        if goes_on:
            assert isinstance(flow.throw(failure), Sleep)
        else:
            with pytest.raises(ScorelineError):
                flow.throw(failure)


def test_a_client_that_has_reached_a_starting_service_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    service = sending.Service("http://nowhere", timeout=30, retry_seconds=20, outage_seconds=300)
    flow = sending.send(service, Request("GET", "/v1/models", dict))
    next(flow)
    assert isinstance(flow.throw(Unreachable("unreachable", "nobody listens")), Sleep)
    now = 4.0
    next(flow)
    service.was_reached = True  # by an answer that it starts
    assert isinstance(flow.throw(ScorelineError("server_starting", "not yet", 503)), Sleep)
    now = 19.0
    next(flow)
    assert isinstance(flow.throw(ScorelineError("server_starting", "not yet", 503)), Sleep)


def test_a_delivery_is_not_sent_again_twice() -> None:
    with answering(in_turn(BROKEN)) as server, Client(server.url) as client:
        with pytest.raises(Unreachable):
            client.redeliver("job_1", "msg_1")
        assert len(server.got) == 1


def test_a_request_that_can_not_be_sent_is_not_repeated() -> None:
    with answering(in_turn(TOKENS)) as server, Client(server.url, retry_seconds=0.3) as client:
        with pytest.raises(Unreachable) as raised:
            client.submit("a", ["b"], label_token_ids=[1], idempotency_key="a line\nand another")
        assert (raised.value.is_final, raised.value.never_answered) == (True, True)


def test_a_deletion_whose_answer_was_lost_is_done() -> None:
    with answering(in_turn(BROKEN, refused(404, "job_not_found"))) as server, Client(server.url) as client:
        client.delete("job_1")
        assert len(server.got) == 2
        with pytest.raises(NotFound):
            client.delete("job_1")


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://127.0.0.1", "http://[::1"])
def test_an_address_that_is_none_is_a_clear_error(url: str) -> None:
    with pytest.raises(Unreachable, match="is no address of a service"):
        Client(url)


def losing_answers(up: Up) -> Callable[[Got], Reply]:
    """Pass requests on to the service, and lose the answer to every first request with a key."""
    seen: set[str] = set()

    def answer(got: Got) -> Reply:
        reply = passed_on(up.url, got)
        key = got.headers.get("Idempotency-Key")
        if key is None or key in seen:
            return reply
        seen.add(key)
        return BROKEN

    return answer


def test_what_was_accepted_before_its_answer_was_lost_is_not_done_again(shared_up: Up) -> None:
    with answering(losing_answers(shared_up)) as server, Client(server.url) as client:
        marked = {"test": "lost answers"}
        submitted = client.submit("a", ["b", "c"], label_token_ids=[1, 2], metadata=marked)
        uploaded = client.upload("a", iter(["b", "c"]), label_token_ids=[1, 2], metadata=marked)
        called = client.score("a", ["b", "c"], label_token_ids=[1, 2])
        made = [job.id for job in client.jobs() if job.metadata == marked]
        assert sorted(made) == sorted([submitted.id, uploaded.id])
        assert [client.wait(job, 30).result.scores for job in made] == [called.scores] * 2  # type: ignore[union-attr]
    keys = [got.headers["Idempotency-Key"] for got in server.got if got.method == "POST"]
    assert [len(list(same)) for _, same in itertools.groupby(keys)] == [2, 2, 2]


def test_an_upload_that_breaks_off_is_sent_again_from_its_beginning(
    shared_up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "SPOOL_BYTES", 1_000)  # The rest is in a file.
    items = [f"item {n} {n * 7919 % 10007}" for n in range(3_000)]
    broken: list[bytes] = []

    def answer(got: Got) -> Reply:
        if got.method == "POST" and len(broken) < 2:
            broken.append(got.body)
            return BROKEN
        return passed_on(shared_up.url, got)

    def once() -> Iterator[str]:
        yield from items

    with answering(answer) as server, Client(server.url) as client:
        job = client.upload("a", once(), label_token_ids=[1])
        result = client.result(client.wait(job, 60))
        assert len(result.scores) == job.total_items == 3_000
        assert result.scores[2_999] == client.score("a", items[-1:], label_token_ids=[1]).scores[0]
    assert len(set(broken)) == 1

    async def uploads() -> int:
        async def slowly() -> AsyncIterator[str]:
            for item in items:
                yield item

        broken.clear()
        async with AsyncClient(server.url) as client:
            return (await client.upload("a", slowly(), label_token_ids=[1])).total_items

    with answering(answer) as server:
        assert asyncio.run(uploads()) == 3_000
    assert len(set(broken)) == 1


@pytest.mark.parametrize(
    "error",
    [Unreachable("unreachable", "another service is away"), httpx2.ReadError("the source broke off"), OSError("gone")],
)
def test_an_error_of_the_items_themselves_is_raised_and_no_part_of_them_is_submitted(
    error: Exception, job_object: dict[str, object]
) -> None:
    def breaking() -> Iterator[str]:
        yield from ("a", "b")
        raise error

    async def slowly() -> AsyncIterator[str]:
        for item in breaking():
            yield item

    async def uploads(items: Iterator[str] | AsyncIterator[str]) -> None:
        async with AsyncClient(server.url) as client:
            await client.upload("a", items, label_token_ids=[1])

    with answering(in_turn(Reply(202, job_object))) as server:
        with Client(server.url) as client, pytest.raises(type(error)) as raised:
            client.upload("a", breaking(), label_token_ids=[1])
        assert raised.value is error
        for items in (breaking(), slowly()):
            with pytest.raises(type(error)) as raised:
                asyncio.run(uploads(items))
            assert raised.value is error
        assert server.got == []
