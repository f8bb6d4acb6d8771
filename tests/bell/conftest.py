"""A real Redis for the tests of the bell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from bell.redis_bell import RedisBell
from tests.bell.forgetful_relay import ForgetfulRelay
from tests.services import RedisServer

PREFIX = "test"


@pytest.fixture
def _empty_redis(redis_server: RedisServer) -> None:
    redis_server.flush()


@pytest.fixture
def bell(redis_server: RedisServer) -> Iterator[RedisBell]:
    bell = RedisBell(redis_server.url, PREFIX)
    yield bell
    bell.close()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def relay(redis_server: RedisServer) -> Iterator[ForgetfulRelay]:
    """A network between a listener and Redis."""
    relay = ForgetfulRelay(redis_server.port)
    yield relay
    relay.close()
