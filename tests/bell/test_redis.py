"""Rings over a real Redis: they arrive, and an outage loses only rings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import celery.worker.strategy
import pytest
import redis

from bell.redis_bell import ENOUGH_RINGS, RedisBell
from bell.redis_celery import RING_TASK, create_celery, queue_name, ring_queue
from bell.redis_ended_jobs import RedisEndedJobsListener
from bell.redis_listener import RedisRingListener
from tests.bell.conftest import PREFIX
from tests.bell.forgetful_relay import ForgetfulRelay
from tests.bell.hearing import Heard, listening, noticing, wait_until
from tests.services import RedisServer, free_port

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("_empty_redis")


def listener_of(server: RedisServer, model: str, heard: Heard) -> RedisRingListener:
    return RedisRingListener(server.url, PREFIX, [model], heard.ring)


def process_id(client: redis.Redis) -> int:
    return int(client.info("server")["process_id"])


def ring_until_heard(bell: RedisBell, heard: Heard) -> None:
    def rung() -> bool:
        bell.ring("demo")
        return bool(heard.rings)

    wait_until(rung, "a ring is heard")


def test_a_ring_reaches_a_worker_of_the_model_and_no_other(redis_server: RedisServer, bell: RedisBell) -> None:
    heard = Heard()
    with listening(listener_of(redis_server, "demo", heard)):
        bell.ring("other")
        bell.ring("demo")
        wait_until(lambda: heard.rings, "the ring is heard")
    assert heard.rings == ["ring"]


def test_a_url_may_have_the_options_of_redis_py(redis_server: RedisServer) -> None:
    """Celery knows none of these."""
    url, heard = f"{redis_server.url}?db=1&protocol=3&socket_timeout=5", Heard()
    with closing(RedisBell(url, PREFIX)) as bell, listening(RedisRingListener(url, PREFIX, ["demo"], heard.ring)):
        bell.ring("demo")
        wait_until(lambda: heard.rings, "the ring is heard")


def test_rings_sent_before_the_worker_listens_wait_for_it(redis_server: RedisServer, bell: RedisBell) -> None:
    bell.ring("demo")
    heard = Heard()
    with listening(listener_of(redis_server, "demo", heard)):
        wait_until(lambda: heard.rings, "the ring is heard")


def test_a_queue_that_holds_enough_rings_gets_no_more(bell: RedisBell, client: redis.Redis) -> None:
    for _ in range(3 * ENOUGH_RINGS):
        bell.ring("demo")
    assert client.llen(f"{PREFIX}:ring.demo") == ENOUGH_RINGS
    assert bell.failures == 0


def test_a_worker_hears_a_ring_that_celery_publishes_as_earlier_versions_do(redis_server: RedisServer) -> None:
    heard = Heard()
    with listening(listener_of(redis_server, "demo", heard)):
        for _ in range(2):
            heard.rings.clear()
            with create_celery(redis_server.url, PREFIX) as app:
                app.send_task(RING_TASK, queue=queue_name("demo"), declare=[], ignore_result=True)
            wait_until(lambda: heard.rings, "the ring is heard")


def test_celery_hears_each_ring_as_a_task_and_acknowledges_it(
    redis_server: RedisServer, bell: RedisBell, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def queue_with_acknowledgements(model: str) -> Any:
        queue = ring_queue(model)
        queue.no_ack = False
        return queue

    # As earlier versions listen.
    monkeypatch.setattr("bell.redis_listener.ring_queue", queue_with_acknowledgements)
    monkeypatch.setattr("bell.redis_listener._run_at_once", celery.worker.strategy.default)
    heard = Heard()
    with listening(listener_of(redis_server, "demo", heard)):
        for _ in range(3):
            heard.rings.clear()
            bell.ring("demo")
            wait_until(lambda: heard.rings, "the ring is heard")
        wait_until(lambda: client.hlen(f"{PREFIX}:unacked") == 0, "all rings are acknowledged")
    assert client.info("commandstats")["cmdstat_hset"]["calls"] >= 3


def test_redis_notes_nothing_of_a_ring_that_a_worker_has_taken(
    redis_server: RedisServer, bell: RedisBell, client: redis.Redis
) -> None:
    heard = Heard()
    with listening(listener_of(redis_server, "demo", heard)):
        ring_until_heard(bell, heard)
        client.config_resetstat()
        heard.rings.clear()
        ring_until_heard(bell, heard)
        used = client.info("commandstats")
    assert "cmdstat_brpop" in used
    assert {"cmdstat_multi", "cmdstat_hset", "cmdstat_zadd", "cmdstat_hdel", "cmdstat_zrem"}.isdisjoint(used)


def test_every_key_in_redis_carries_the_prefix(redis_server: RedisServer, bell: RedisBell, client: redis.Redis) -> None:
    heard = Heard()
    with listening(listener_of(redis_server, "demo", heard)):
        ring_until_heard(bell, heard)
        bell.ring("other")
        keys = client.keys("*")
    assert keys
    assert all(isinstance(key, bytes) and key.startswith(f"{PREFIX}:".encode()) for key in keys), keys


def test_ringing_works_after_redis_was_flushed(redis_server: RedisServer, bell: RedisBell) -> None:
    heard = Heard()
    with listening(listener_of(redis_server, "demo", heard)):
        ring_until_heard(bell, heard)
        redis_server.flush()
        heard.rings.clear()
        ring_until_heard(bell, heard)
    assert bell.failures == 0


def test_without_redis_ringing_never_raises_and_takes_no_time() -> None:
    bell = RedisBell(f"redis://127.0.0.1:{free_port()}/0", PREFIX)
    started = time.monotonic()
    for _ in range(100):
        bell.ring("demo")
        bell.announce(["job_1"])
    assert time.monotonic() - started < 1.0
    assert bell.failures == 200
    bell.close()


def test_a_redis_that_does_not_answer_delays_only_the_first_of_many_rings(bell: RedisBell, client: redis.Redis) -> None:
    bell.ring("demo")
    server = process_id(client)
    os.kill(server, signal.SIGSTOP)
    try:
        started = time.monotonic()
        for _ in range(20):
            bell.ring("demo")
            bell.announce(["job_1"])
        assert time.monotonic() - started < 1.0
    finally:
        os.kill(server, signal.SIGCONT)
    assert bell.failures == 40


def test_a_bell_rings_again_once_redis_is_back(redis_server: RedisServer, bell: RedisBell) -> None:
    heard = Heard()
    bell.ring("demo")
    redis_server.stop()
    bell.ring("demo")
    assert bell.failures == 1
    redis_server.start()
    with listening(listener_of(redis_server, "demo", heard)):
        ring_until_heard(bell, heard)


def test_a_bell_finds_the_new_primary_after_a_fail_over_that_keeps_its_connection(
    client: redis.Redis, relay: ForgetfulRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bell.redis_bell.MUTE_SECONDS", 0.0)
    with (
        closing(RedisServer()) as primary,
        closing(RedisBell(f"redis://127.0.0.1:{relay.port}/0", PREFIX)) as bell,
        redis.Redis.from_url(primary.url) as client_of_primary,
    ):
        bell.ring("demo")
        relay.upstream_port = primary.port
        client.replicaof(primary.address, str(primary.port))
        try:

            def rung() -> bool:
                bell.ring("demo")
                return bool(client_of_primary.llen(f"{PREFIX}:ring.demo"))

            wait_until(rung, "a ring reaches the new primary")
        finally:
            client.replicaof("NO", "ONE")
    assert bell.failures > 0


def test_the_first_ring_after_a_restart_of_redis_is_not_lost(redis_server: RedisServer, bell: RedisBell) -> None:
    bell.ring("demo")
    bell.announce(["job_1"])
    redis_server.stop()
    redis_server.start()
    heard = Heard()
    with (
        noticing(RedisEndedJobsListener(redis_server.url, PREFIX), heard),
        listening(listener_of(redis_server, "demo", heard)),
    ):
        bell.ring("demo")
        wait_until(lambda: heard.rings, "the ring is heard")
    assert bell.failures == 0


def test_a_worker_starts_while_redis_is_away_and_hears_it_later(redis_server: RedisServer, bell: RedisBell) -> None:
    redis_server.stop()
    heard = Heard()
    try:
        with listening(listener_of(redis_server, "demo", heard)) as started:
            assert started.wait(10), "the worker waits for Redis"
            redis_server.start()
            ring_until_heard(bell, heard)
    finally:
        redis_server.stop()
        redis_server.start()


def test_a_worker_survives_the_loss_of_redis(redis_server: RedisServer, bell: RedisBell) -> None:
    heard = Heard()
    with listening(listener_of(redis_server, "demo", heard)):
        ring_until_heard(bell, heard)
        redis_server.stop()
        redis_server.start()
        heard.rings.clear()
        ring_until_heard(bell, heard)


def test_a_listener_stops_within_two_seconds_while_redis_is_away(redis_server: RedisServer) -> None:
    heard = Heard()
    away = RedisRingListener(f"redis://127.0.0.1:{free_port()}/0", PREFIX, ["demo"], heard.ring)
    with listening(away) as started:
        assert started.wait(10)
        stopping = time.monotonic()
    assert time.monotonic() - stopping < 2.0


def test_a_listener_stopped_before_it_runs_returns_at_once(redis_server: RedisServer) -> None:
    heard = Heard()
    listener = listener_of(redis_server, "demo", heard)
    listener.stop()
    listener.run(lambda: pytest.fail("it was stopped"))


@pytest.mark.slow
def test_rings_are_heard_again_after_the_network_forgot_the_connection(relay: ForgetfulRelay, bell: RedisBell) -> None:
    heard = Heard()
    with listening(RedisRingListener(f"redis://127.0.0.1:{relay.port}/0", PREFIX, ["demo"], heard.ring)):
        ring_until_heard(bell, heard)
        relay.forget()
        heard.rings.clear()
        ring_until_heard(bell, heard)


LOCAL = """
import sys
from bell.opening import open_api_bell, open_worker_bell
from settings.bell import BellSettings

settings = BellSettings(bell_socket="bell")
open_api_bell(settings)
open_worker_bell(settings, ["demo"], print)
print({"celery", "kombu", "redis"} & set(sys.modules))
"""


def test_a_bell_on_a_socket_loads_no_library_for_redis(tmp_path: Path) -> None:
    """They would take a quarter of a second of each start of `scoreline up`."""
    loaded = subprocess.run(
        [sys.executable, "-c", LOCAL],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert loaded.stdout == "set()\n"


def ring_as_stored(redis_server: RedisServer, client: redis.Redis) -> dict[str, Any]:
    """Return a message as the bell puts it into the queue, which is empty afterwards."""
    with closing(RedisBell(redis_server.url, PREFIX)) as bell:
        bell.ring("demo")
    message: dict[str, Any] = json.loads(cast("bytes", client.lpop(f"{PREFIX}:ring.demo")))
    return message


MALFORMED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no JSON": lambda ring: "{",
    "no object": lambda ring: [],
    "an empty object": lambda ring: {},
    "raw data": lambda ring: ring | {"content-type": "application/data", "content-encoding": "binary"},
    "raw data of no task": lambda ring: ring | {"content-type": "application/data", "headers": {}},
    "a pickle": lambda ring: ring | {"content-type": "application/x-python-serialize"},
    "an unknown content type": lambda ring: ring | {"content-type": "a/b"},
    "a body that is not base64": lambda ring: ring | {"body": "***"},
    "a body of another shape": lambda ring: ring | {"body": b64encode(b"7").decode()},
    "a number as the body": lambda ring: ring | {"body": 7},
    "an unknown task": lambda ring: ring | {"headers": ring["headers"] | {"task": "other"}},
    "a list as the task": lambda ring: ring | {"headers": ring["headers"] | {"task": []}},
    "headers of another shape": lambda ring: ring | {"headers": 7},
    "no properties": lambda ring: {name: value for name, value in ring.items() if name != "properties"},
    "no delivery tag": lambda ring: ring | {"properties": {}},
    "an unknown body encoding": lambda ring: ring | {"properties": ring["properties"] | {"body_encoding": "x"}},
    "an unreadable time": lambda ring: ring | {"headers": ring["headers"] | {"eta": "x", "expires": "y"}},
    "compression that does not exist": lambda ring: ring | {"headers": ring["headers"] | {"compression": "x"}},
}


ALWAYS = ("no JSON", "raw data")


@pytest.mark.parametrize(
    "kind", [kind if kind in ALWAYS else pytest.param(kind, marks=pytest.mark.slow) for kind in MALFORMED]
)
def test_a_malformed_message_in_redis_is_dropped_and_later_rings_are_heard(
    redis_server: RedisServer, bell: RedisBell, client: redis.Redis, kind: str
) -> None:
    ring = ring_as_stored(redis_server, client)
    found = MALFORMED[kind](ring)
    queue = f"{PREFIX}:ring.demo"
    client.lpush(queue, found if isinstance(found, str) else json.dumps(found))
    heard = Heard()
    with listening(listener_of(redis_server, "demo", heard)):
        wait_until(lambda: client.llen(queue) == 0, "the message is taken or dropped")
        ring_until_heard(bell, heard)
        before = len(heard.rings)
        bell.ring("demo")
        wait_until(lambda: len(heard.rings) > before and client.llen(queue) == 0, "a further ring is heard")
    assert client.hlen(f"{PREFIX}:unacked") == 0
