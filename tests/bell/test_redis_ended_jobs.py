"""Hearing over a real Redis which jobs have ended, also after outages of Redis and of the network."""

from __future__ import annotations

import asyncio

import pytest
import redis
import uvloop

from bell.redis_bell import MUTE_SECONDS, RedisBell
from bell.redis_ended_jobs import RedisEndedJobsListener
from tests.bell.conftest import PREFIX
from tests.bell.forgetful_relay import ForgetfulRelay
from tests.bell.hearing import Heard, noticing, wait_until
from tests.services import RedisServer

pytestmark = pytest.mark.usefixtures("_empty_redis")


def test_all_announced_jobs_are_heard(redis_server: RedisServer, bell: RedisBell) -> None:
    heard = Heard()
    with noticing(RedisEndedJobsListener(redis_server.url, PREFIX), heard):
        wait_until(lambda: _announced(bell, heard, "first"), "the subscription stands")
        many = [f"job_{n:036d}" for n in range(2_500)]
        bell.announce(many)
        wait_until(lambda: len([job for job in heard.ended if job != "first"]) == len(many), "all are noticed")
    assert sorted(set(heard.ended)) == sorted({"first", *many})


def test_results_are_heard_with_their_jobs_and_nothing_of_them_is_stored(
    redis_server: RedisServer, bell: RedisBell, client: redis.Redis
) -> None:
    heard = Heard()
    with noticing(RedisEndedJobsListener(redis_server.url, PREFIX), heard):
        wait_until(lambda: _announced(bell, heard, "first"), "the subscription stands")
        results = {f"job_{n}": f"result {n} " + "r" * 5_000 for n in range(100)}
        bell.announce([*results, "job_without"], results)
        wait_until(lambda: "job_without" in heard.ended, "all are noticed")
    assert heard.results == results
    assert client.keys("*") == []


def test_what_can_not_be_read_on_the_channel_is_ignored(
    redis_server: RedisServer, bell: RedisBell, client: redis.Redis
) -> None:
    heard = Heard()
    with noticing(RedisEndedJobsListener(redis_server.url, PREFIX), heard):
        wait_until(lambda: _announced(bell, heard, "first"), "the subscription stands")
        for message in (b"", b"\xff", b"{", b"7", b"[" * 100_000, b'[["job_1"], 7]', b'{"job_1": {"result": []}}'):
            assert client.publish(f"{PREFIX}:ended", message) == 1, "the listener still listens"
        bell.announce(["job_2"])
        wait_until(lambda: "job_2" in heard.ended, "the same subscription hears what can be read")
    assert [job_id for job_id in heard.ended if job_id != "first"] == ["job_1", "job_2"]
    assert heard.results == {}


def test_announcements_are_heard_again_after_redis_was_away(redis_server: RedisServer, bell: RedisBell) -> None:
    heard = Heard()
    with noticing(RedisEndedJobsListener(redis_server.url, PREFIX), heard):
        wait_until(lambda: _announced(bell, heard, "before"), "the subscription stands")
        redis_server.stop()
        redis_server.start()
        wait_until(lambda: _announced(bell, heard, "after"), "the subscription stands again", 5 + 5 * MUTE_SECONDS)


def test_announcements_are_heard_again_after_the_network_forgot_the_connection(
    relay: ForgetfulRelay, bell: RedisBell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bell.redis_ended_jobs.QUIET_SECONDS", 0.1)
    heard = Heard()
    with noticing(RedisEndedJobsListener(f"redis://127.0.0.1:{relay.port}/0", PREFIX), heard):
        wait_until(lambda: _announced(bell, heard, "before"), "the subscription stands")
        relay.forget()
        wait_until(lambda: _announced(bell, heard, "after"), "there is a new subscription", 10)


def test_a_listener_that_is_cancelled_ends_wherever_it_is(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bell.redis_ended_jobs.QUIET_SECONDS", 0.001)

    async def ends_when_cancelled_after(turns_of_the_loop: int) -> bool:
        listening = asyncio.create_task(RedisEndedJobsListener(redis_server.url, PREFIX).listen(Heard().end))
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        listening.cancel()
        ended, _ = await asyncio.wait([listening], timeout=10)
        return bool(ended)

    async def main() -> None:
        for turns in range(100):
            assert await ends_when_cancelled_after(turns), f"cancelled after {turns} turns of the loop"

    uvloop.run(main())


@pytest.mark.slow
def test_a_frozen_redis_loses_no_subscription_that_it_still_has(redis_server: RedisServer, bell: RedisBell) -> None:
    heard = Heard()
    with noticing(RedisEndedJobsListener(redis_server.url, PREFIX), heard):
        wait_until(lambda: _announced(bell, heard, "before"), "the subscription stands")
        with redis_server.frozen():
            bell.announce(["lost"])
        wait_until(lambda: _announced(bell, heard, "after"), "announcements are heard", 10)


def _announced(bell: RedisBell, heard: Heard, job_id: str) -> bool:
    bell.announce([job_id])
    return job_id in heard.ended
