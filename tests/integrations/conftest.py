"""Tests with engines of others, which ``make integrations`` installs: collected with ``-m integrations`` alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from scoreline import Client
from tests.scoreline.conftest import model_directory, shared_up  # noqa: F401 (fixtures)
from tests.scoreline.running import ROOT, Up

QUERIES = [f"What is said of the {what}?" for what in ("room", "bar", "pool", "garden")]
LABELS = [" yes", " no"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the engines, unless their tests are asked for."""
    return None if config.getoption("markexpr") == "integrations" else True


@pytest.fixture(scope="session", autouse=True)
def environment(shared_up: Up) -> Iterator[None]:  # noqa: F811
    """Have the processes of engines find this package and the service."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCORELINE_URL", shared_up.url)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        yield


@pytest.fixture
def client(shared_up: Up) -> Iterator[Client]:  # noqa: F811
    """A client of the service, which has nothing open."""
    with Client(shared_up.url) as client:
        client.cancel_all()
        yield client


@pytest.fixture
def table() -> pa.Table:
    """Rows that are sorted by their queries, one of which has no item."""
    rows = [(n, QUERIES[n // 100], f"It is number {n}." if n != 150 else None) for n in range(400)]
    return pa.Table.from_pylist([dict(zip(("number", "query", "item"), row, strict=True)) for row in rows])


@pytest.fixture
def expected(client: Client, table: pa.Table) -> dict[int, float | None]:
    """The probability of yes of each row, as calls give it."""
    found: dict[int, float | None] = {}
    for query in QUERIES:
        rows = [row for row in table.to_pylist() if row["query"] == query]
        scored = [row for row in rows if row["item"] is not None]
        scores = client.score(query, [row["item"] for row in scored], labels=LABELS).scores
        found |= {row["number"]: None for row in rows}
        found |= {row["number"]: score[0] for row, score in zip(scored, scores, strict=True)}
    return found


def items_since(client: Client, before: set[str]) -> int:
    """How many items jobs have that were not there before."""
    return sum(job.total_items for job in client.jobs() if job.id not in before)


def asked(**more: Any) -> dict[str, Any]:
    """What is asked about each row."""
    return {"item_column": "item", "query_column": "query", "labels": LABELS, "empty": "skip", **more}
