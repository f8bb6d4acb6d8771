"""Deployments with faults, on either database, with a Redis or without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.deployment import FaultyDeployment
from tests.services import free_port
from tests.workers.conftest import Store


@pytest.fixture
def no_redis() -> str:
    """The URL of a Redis that is not there."""
    return f"redis://127.0.0.1:{free_port()}/0"


@pytest.fixture
def deployment(tmp_path: Path, store_url: str, no_redis: str) -> Iterator[FaultyDeployment]:
    """On a fresh, migrated store, once on each database. Nothing runs yet; without Redis, workers poll."""
    with FaultyDeployment(tmp_path, store_url, no_redis) as deployment:
        yield deployment


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """The same store, to submit to and to look at without an API."""
    store = Store(store_url)
    yield store
    store.database.close()
