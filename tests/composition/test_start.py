"""Run the services of the composition: commands, environments, order and health checks, on private servers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.composition.machine import CopiedSource, Machine, ReadOnlySource, may_mount
from tests.composition.scenario import run_composition
from tests.services import PostgresServer, RedisServer


@pytest.fixture
def machine(tmp_path: Path, postgres: PostgresServer, redis_server: RedisServer) -> Iterator[Machine]:
    source = ReadOnlySource if may_mount() else CopiedSource
    machine = Machine(tmp_path, source(tmp_path), postgres, redis_server)
    yield machine
    machine.close()


@pytest.mark.skipif(not may_mount(), reason="NOT TESTED: this process may not mount")
def test_a_role_with_a_read_only_root_can_write_to_its_own_folders_alone(tmp_path: Path) -> None:
    source = ReadOnlySource(tmp_path)
    tried = [*source.writable.values(), tmp_path, tmp_path / "app", Path("/dev/shm"), Path("/tmp"), Path.home()]
    command, folder = source.popen_arguments(
        ["sh", "-c", 'for one in "$@"; do touch "$one/written" && echo "$one"; done', "sh", *map(str, tried)],
        {**source.environment, "PATH": os.environ["PATH"]},
    )
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [str(path) for path in source.writable.values()]
    assert done.stderr.count("Read-only file system") == len(tried) - len(source.writable)


@pytest.mark.slow
def test_the_composed_services_start_in_order_become_healthy_score_and_stop(
    machine: Machine, postgres: PostgresServer
) -> None:
    run_composition(machine, postgres)
