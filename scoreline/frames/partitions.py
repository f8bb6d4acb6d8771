"""Parts of a table that several processes score, as Ray and Spark divide it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from scoreline.client import KEY_VARIABLE, URL_VARIABLE
from scoreline.frames.asked import Asking, asking
from scoreline.frames.streams import served
from scoreline.frames.tables import check_columns, table_of, with_columns
from scoreline.runs.formats import Kind

COUNTED = pa.schema([("items", pa.int64()), ("tokens", pa.int64())])
"""What counting gives for each part."""


def of_parts(asked: Mapping[str, Any], engine: str) -> Asking:
    """Return what is asked of parts, which need not know the environment of this process. Raises TableError.

    Without ``run``, it gets a name that no other run has.
    """
    ours = {
        "run": f"{engine}-{secrets.token_hex(8)}",
        "url": os.environ.get(URL_VARIABLE),
        "api_key": os.environ.get(KEY_VARIABLE),
    }
    return asking(**{**ours, **{name: value for name, value in asked.items() if value is not None}})


def reached(wanted: Asking) -> Asking:
    """Return the same for processes that wait for a service that is away, which answers now. Raises ScorelineError."""
    served(wanted)
    return replace(wanted, was_reached=True)


def new_of_parts(wanted: Asking, columns: list[str]) -> tuple[Asking, dict[str, Kind]]:
    """Return what all parts are asked, with the model and the template of now, and the new columns.

    columns: those of the table. Raises TableError and ScorelineError.
    """
    check_columns(wanted, columns)
    models = served(wanted)
    wanted = replace(wanted.of_served(models), was_reached=True)
    return wanted, wanted.columns(models, columns)


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores a part. Its caps hold for all parts together, so they are checked before, and not here."""

    asking: Asking

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a part with their new columns. Raises TableError and ScorelineError."""
        stream = iter(batches)
        for first in stream:
            reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], stream))
            yield from with_columns(reader, replace(self.asking, max_items=None, max_tokens=None))


@dataclass(frozen=True, slots=True)
class Counting:
    """Counts what scoring a part would take."""

    asking: Asking
    tokens: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row for each batch of a part: see COUNTED. Raises TableError and ScorelineError."""
        for batch in batches:
            table = table_of(batch)
            check_columns(self.asking, table.columns)
            found = table.cost(self.asking, tokens=self.tokens)
            yield pa.RecordBatch.from_pydict(
                {"items": [found.items], "tokens": [found.prompt_tokens or 0]}, schema=COUNTED
            )
