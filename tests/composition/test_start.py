"""Run the services of the composition: commands, environments, order and health checks, on private servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.composition.machine import CopiedSource, Machine
from tests.composition.scenario import run_composition
from tests.services import PostgresServer, RedisServer


@pytest.fixture
def machine(tmp_path: Path, postgres: PostgresServer, redis_server: RedisServer) -> Iterator[Machine]:
    machine = Machine(tmp_path, CopiedSource(tmp_path), postgres, redis_server)
    yield machine
    machine.close()


@pytest.mark.slow
def test_the_composed_services_start_in_order_become_healthy_score_and_stop(
    machine: Machine, postgres: PostgresServer
) -> None:
    run_composition(machine, postgres)
