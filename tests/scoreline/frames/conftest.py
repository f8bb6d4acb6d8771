"""What tests of tables share: a table of reviews, and what is asked about it."""

from __future__ import annotations

from datetime import date
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from scoreline import Client
from scoreline.frames import asked as asked_module
from scoreline.runs.windows import WindowSize
from tests.scoreline.running import Up

ITEMS = [f"Room {n} was {word}." for n in range(10) for word in ("clean", "dirty", "small")]
KINDS = ["room", "bar"]
LABELS = [" yes", " no"]
NEW = ["yes", "no", "label_mass"]


@pytest.fixture
def asked(shared_up: Up) -> dict[str, Any]:
    """What is asked about each item, and of whom."""
    return {"query": "Review: ", "labels": LABELS, "url": shared_up.url}


@pytest.fixture
def reviews() -> pa.Table:
    """Items among columns of many types, in several chunks."""
    whole = pa.table(
        {
            "number": pa.array(range(len(ITEMS)), pa.int16()),
            "review": pa.array(ITEMS, pa.large_string()),
            "kind": pa.array([KINDS[n % 2] for n in range(len(ITEMS))]).dictionary_encode(),
            "day": pa.array([date(2026, 11, 1 + n % 28) for n in range(len(ITEMS))]),
            "tags": pa.array([["a"] * (n % 3) for n in range(len(ITEMS))]),
        }
    )
    whole = whole.replace_schema_metadata({"written by": "hand"})
    return pa.Table.from_batches(whole.to_batches(max_chunksize=7))


@pytest.fixture
def expected(client: Client) -> list[list[float]]:
    """The scores and the label mass of each item, as a call has them."""
    found = client.score("Review: ", ITEMS, labels=LABELS)
    return [[*row, mass] for row, mass in zip(found.scores, found.label_mass or [], strict=True)]


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> int:
    """Have a window of few rows, and return how many."""
    monkeypatch.setattr(asked_module, "WINDOW", WindowSize(4, 10_000))
    return 4


def numbers(table: Any) -> list[list[float]]:
    """The new cells of a table of Arrow, pandas or Polars."""
    if isinstance(table, pa.RecordBatchReader):
        table = table.read_all()
    columns = table.to_pydict() if isinstance(table, pa.Table | pa.RecordBatch) else table
    columns = table.to_dict(as_series=False) if isinstance(table, pl.DataFrame) else columns
    return [list(cells) for cells in zip(*(columns[name] for name in NEW), strict=True)]
