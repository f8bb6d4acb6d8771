"""Rate limits with Redis, without it, and with a Redis that is unavailable or slow."""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis

from api.callers.rate_limiting import REDIS_SECONDS
from jobs.store.database import Database
from jobs.tenancy.tenants import DEFAULT_TENANT, set_tenant
from settings.store import StoreSettings
from tests.api.serving import RunningApi, running_api
from tests.api.tiny_model import TinyModel
from tests.proxy import Proxy
from tests.services import RedisServer, free_port, wait_until

LIMIT = 5
POLICY = f'"minute";q={LIMIT};w=60'


@pytest.fixture
def limited_url(sqlite_url: str) -> str:
    """A database whose default tenant may send ``LIMIT`` requests per minute."""
    store = Database.open(StoreSettings(database_url=sqlite_url))
    set_tenant(store, DEFAULT_TENANT, requests_per_minute=LIMIT)
    store.close()
    return sqlite_url


@contextmanager
def serving(model: TinyModel, url: str, folder: Path, redis_url: str | None) -> Iterator[RunningApi]:
    settings: dict[str, Any] = {"with_worker": False}
    if redis_url is not None:
        settings |= {"bell_socket": None, "redis_url": redis_url, "bell_prefix": f"of-{folder.name}"}
    with running_api(model.directory, url, folder, **settings) as (api, _):
        yield api


def ask(api: RunningApi) -> httpx2.Response:
    return api.client.get("/v1/jobs")


def until_refused(*apis: RunningApi) -> tuple[list[httpx2.Response], httpx2.Response]:
    """Send requests to the APIs in turn until one is refused. Returns the answers before, and the refusal."""
    answers: list[httpx2.Response] = []
    while len(answers) < 10 * LIMIT:
        answer = ask(apis[len(answers) % len(apis)])
        if answer.status_code == 429:
            return answers, answer
        assert answer.status_code == 200, answer.text
        answers.append(answer)
    raise AssertionError("it is never refused")


def assert_headers(answers: list[httpx2.Response], refused: httpx2.Response) -> None:
    """Check that the header fields show the remaining requests, and when a refused client may retry."""
    left = []
    for answer in (*answers, refused):
        assert answer.headers["ratelimit-policy"] == POLICY
        found = re.fullmatch(r'"minute";r=(\d+);t=(\d+)', answer.headers["ratelimit"])
        assert found is not None
        assert 1 <= int(found[2]) <= 60
        left.append(int(found[1]))
    assert left == [*range(LIMIT - 1, -1, -1), 0]
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert refused.headers["ratelimit"].endswith(f";t={refused.headers['retry-after']}")


def test_processes_that_share_a_redis_share_their_counts(
    model: TinyModel, limited_url: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    with (
        serving(model, limited_url, tmp_path / "a", redis_server.url) as one,
        serving(model, limited_url, tmp_path / "a", redis_server.url) as other,
    ):
        answers, refused = until_refused(one, other)
        assert_headers(answers, refused)
        assert one.client.post("/v1/jobs", json={}).status_code == 429, "all routes count"
        assert one.client.get("/livez").status_code == 200, "open routes are not limited"


def test_in_embedded_mode_the_process_counts_by_itself(model: TinyModel, limited_url: str, tmp_path: Path) -> None:
    with serving(model, limited_url, tmp_path, None) as api:
        answers, refused = until_refused(api)
        assert LIMIT <= len(answers) <= LIMIT + 1, "one more if a new window begins"
        assert refused.headers["ratelimit-policy"] == POLICY


def test_without_its_redis_a_process_counts_by_itself_and_no_request_waits(
    model: TinyModel, limited_url: str, tmp_path: Path
) -> None:
    with serving(model, limited_url, tmp_path, f"redis://127.0.0.1:{free_port()}/0") as api:
        began = time.monotonic()
        answers, refused = until_refused(api)
        assert time.monotonic() - began < 3.0
        assert LIMIT <= len(answers) <= LIMIT + 1
        assert refused.headers["ratelimit-policy"] == POLICY


def test_few_requests_wait_for_a_redis_that_does_not_answer(model: TinyModel, limited_url: str, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        with serving(model, limited_url, tmp_path, url) as api:
            began = time.monotonic()
            with ThreadPoolExecutor(40) as pool:
                statuses = Counter(answer.status_code for answer in pool.map(ask, [api] * 40))
            assert time.monotonic() - began < 4.0, "only the requests in the threads have waited"
            assert statuses.keys() == {200, 429}
            assert LIMIT <= statuses[200] <= LIMIT + 1


class SlowRedis(Proxy):
    """A proxy that delays the answers of Redis by ``seconds``, and counts the scripts that are run."""

    def __init__(self, port: int) -> None:
        self.seconds = 0.0
        self.asked = 0
        super().__init__(port)
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def carry(self, client: socket.socket, upstream: socket.socket) -> None:
        """Pass on one command at a time, and its answer."""
        with client, upstream, suppress(OSError):
            while command := client.recv(65_536):
                self.asked += command.count(b"EVALSHA")
                upstream.sendall(command)
                answer = upstream.recv(65_536)
                time.sleep(self.seconds)
                client.sendall(answer)


def test_a_redis_whose_answers_add_up_to_too_long_is_not_used(
    model: TinyModel, limited_url: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    store = Database.open(StoreSettings(database_url=limited_url))
    set_tenant(store, DEFAULT_TENANT, requests_per_second=1_000, requests_per_minute=1_000)
    store.close()
    with (
        closing(SlowRedis(redis_server.port)) as slow,
        serving(model, limited_url, tmp_path, slow.url) as api,
    ):
        for _ in range(2):
            assert ask(api).status_code == 200
        before, slow.seconds = slow.asked, REDIS_SECONDS * 0.7
        assert ask(api).status_code == 200
        asked = slow.asked - before
        assert 1 <= asked <= 2, "not all of the four scripts were run"
        assert ask(api).headers["ratelimit-policy"].count("q=1000") == 2, "the requests are still counted"
        assert slow.asked - before == asked, "Redis is not used any more"


def test_counts_are_shared_again_after_a_fail_over_that_keeps_connections(
    model: TinyModel, limited_url: str, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.callers.rate_limiting.AWAY_SECONDS", 0.0)
    with (
        closing(RedisServer()) as primary,
        redis.Redis.from_url(redis_server.url) as client,
        redis.Redis.from_url(primary.url) as client_of_primary,
        closing(SlowRedis(redis_server.port)) as relay,
        serving(model, limited_url, tmp_path, relay.url) as api,
    ):
        ask(api)
        relay.upstream_port = primary.port
        client.replicaof(primary.address, str(primary.port))
        try:

            def counted() -> bool:
                ask(api)
                return bool(client_of_primary.keys(f"of-{tmp_path.name}:rates*"))

            wait_until(counted, "the new primary counts")
        finally:
            client.replicaof("NO", "ONE")


def test_responses_to_a_tenant_without_limits_have_no_rate_limit_headers(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    with serving(model, sqlite_url, tmp_path, None) as api:
        for _ in range(3 * LIMIT):
            answer = ask(api)
            assert answer.status_code == 200
            assert not {"ratelimit", "ratelimit-policy"} & set(answer.headers)


def test_the_headers_show_both_limits_of_a_tenant(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    store = Database.open(StoreSettings(database_url=sqlite_url))
    set_tenant(store, DEFAULT_TENANT, requests_per_second=100, requests_per_minute=1_000)
    store.close()
    with serving(model, sqlite_url, tmp_path, None) as api:
        headers = ask(api).headers
        assert headers["ratelimit-policy"] == '"second";q=100;w=1, "minute";q=1000;w=60'
        assert re.fullmatch(r'"second";r=99;t=1, "minute";r=999;t=\d+', headers["ratelimit"])


def test_what_the_limit_per_second_refuses_does_not_use_up_that_per_minute(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    with closing(Database.open(StoreSettings(database_url=sqlite_url))) as store:
        set_tenant(store, DEFAULT_TENANT, requests_per_second=2, requests_per_minute=1_000)
    with serving(model, sqlite_url, tmp_path, None) as api:
        answers = [ask(api) for _ in range(12)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    left = re.search(r'"minute";r=(\d+)', answers[-1].headers["ratelimit"])
    assert left is not None
    assert int(left[1]) >= 1_000 - (len(answers) - len(refused))
