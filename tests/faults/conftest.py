"""Deployments with faults, and the stores on which they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.deployment import FaultyDeployment
from tests.services import free_port
from tests.workers.conftest import Store


@pytest.fixture
def no_redis() -> str:
    """The URL of a Redis that does not exist."""
    return f"redis://127.0.0.1:{free_port()}/0"


@pytest.fixture
def deployment(tmp_path: Path, store_url: str, no_redis: str) -> Iterator[FaultyDeployment]:
    """A deployment in which nothing runs yet, on a fresh store of either database. Without Redis, its workers poll."""
    with FaultyDeployment(tmp_path, store_url, no_redis) as deployment:
        yield deployment


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """The store of the deployment, for tests that submit and read without an API."""
    store = Store(store_url)
    yield store
    store.database.close()
