"""Short soaks. ``make soak`` runs a long one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import PostgresServer, RedisServer
from tests.soak.checker import Verdict
from tests.soak.soak import Plan, soak


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


def run(plan: Plan, folder: Path, url: str, postgres: PostgresServer | None, redis_server: RedisServer) -> Verdict:
    said: list[str] = []
    verdict = soak(plan, folder, url, postgres, redis_server, said.append)
    assert verdict.clean, "\n".join([*said, str(verdict)])
    return verdict


@pytest.mark.faults
def test_a_short_soak_on_postgresql_loses_nothing(
    tmp_path: Path, own_postgres: PostgresServer, own_redis: RedisServer
) -> None:
    url = own_postgres.url(own_postgres.create_database())
    plan = Plan(seconds=20, seed=1, workers=3, clients=2, pause=1.0)
    assert run(plan, tmp_path, url, own_postgres, own_redis).accepted > 10


@pytest.mark.faults
def test_a_short_soak_on_sqlite_loses_nothing(tmp_path: Path, own_redis: RedisServer) -> None:
    plan = Plan(seconds=10, seed=2, workers=2, clients=2, pause=1.0)
    assert run(plan, tmp_path, f"sqlite:///{tmp_path / 'scoreline.db'}", None, own_redis).accepted > 5
