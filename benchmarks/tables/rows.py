"""The rows of the table that is scored, and what each must get. The same number makes the same row."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq
from tokenizers import Tokenizer

from benchmarks.batches.lines import logits
from benchmarks.pairs import ITEM, LABELS, pair
from benchmarks.shapes import DEMONSTRATION
from benchmarks.upload import WORDS
from scoreline.client import Client

WRITTEN_AT_A_TIME = 50_000
SCORES = [label.strip() for label in LABELS]
COLUMNS = ["number", "query", "item", *SCORES]
SAMPLE = 200
"""Rows that a real model scores once more."""

SHOWN = 5
"""Rows that are shown of those that are wrong."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows over some queries. Those of a query are side by side, and their items are all different."""

    count: int
    queries: int
    words: int = 0  # that queries begin with

    def query(self, number: int) -> str:
        """Return one of the queries."""
        words = random.Random(number).choices(WORDS, k=self.words)
        return " ".join([*words, pair(0, number)[0]])

    def of(self, numbers: Sequence[int]) -> tuple[list[str], list[str]]:
        """Return the queries and the items of some rows."""
        places = [number * self.queries // self.count for number in numbers]
        known = {place: self.query(place) for place in set(places)}
        return [known[place] for place in places], [ITEM.format(number) for number in numbers]

    def write(self, path: Path) -> None:
        """Write all rows to a Parquet file."""
        schema = pa.schema([("number", pa.int64()), ("query", pa.string()), ("item", pa.string())])
        with pq.ParquetWriter(path, schema) as writer:
            for begin in range(0, self.count, WRITTEN_AT_A_TIME):
                numbers = range(begin, min(begin + WRITTEN_AT_A_TIME, self.count))
                writer.write_table(pa.table([[*numbers], *self.of(numbers)], schema))


@dataclass(slots=True)
class Checked:
    """What was found in the scored table."""

    rows: int = 0
    wrong: list[str] = field(default_factory=list)  # the first problems, in words
    problems: int = 0

    def say(self, problem: str) -> None:
        """Count a problem."""
        self.problems += 1
        if len(self.wrong) < SHOWN:
            self.wrong.append(problem)


class Prefixes:
    """How many tokens queries have, and what the quick worker computes, without any code of the service."""

    def __init__(self, model: Path = DEMONSTRATION) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._known: dict[str, list[int]] = {}

    def tokens(self, query: str) -> list[int]:
        """Return the token ids of a query."""
        if query not in self._known:
            self._known[query] = self._tokenizer.encode(query).ids
        return self._known[query]

    def quick_scores(self, queries: Sequence[str], items: Sequence[str]) -> list[list[float]]:
        """Return the probabilities of the labels that the quick worker gives to some rows."""
        encoded = self._tokenizer.encode_batch([*items], add_special_tokens=False)
        rows = zip(queries, encoded, strict=True)
        computed = [logits(self.tokens(query), item.ids, len(LABELS)) for query, item in rows]
        return [[math.exp(float(np.float32(-value) / np.float32(100))) for value in row] for row in computed]

    def cached_at_most(self, rows: Rows) -> tuple[int, int]:
        """Return the tokens of the queries of all rows, and those of all queries."""
        of_rows = of_queries = 0
        for query in range(rows.queries):
            tokens = len(self.tokens(rows.query(query)))
            # The numbers n of a query are those with query <= n * queries / count < query + 1.
            begin, end = (-(-number * rows.count // rows.queries) for number in (query, query + 1))
            of_rows += (end - begin) * tokens
            of_queries += tokens
        return of_rows, of_queries


def check(rows: Rows, scored: Iterable[pa.RecordBatch], *, in_order: bool, quick: Prefixes | None) -> Checked:
    """Compare each row of the scored table with what it must be.

    in_order: whether the rows must come in the order of their numbers. quick: what the quick worker computes; None: a
    real model has scored, whose probabilities only have to be some.
    """
    found = Checked()
    seen = np.zeros(rows.count, np.int64)
    for batch in scored:
        numbers = batch.column("number").to_pylist()
        if in_order and numbers != [*range(found.rows, found.rows + len(numbers))]:
            found.say(f"rows from the place {found.rows} on have the numbers {numbers[:3]}...")
        found.rows += len(numbers)
        known = [number for number in numbers if number is not None and 0 <= number < rows.count]
        if known != numbers:
            found.say(f"{len(numbers) - len(known)} numbers that are of no row")
            continue
        np.add.at(seen, numbers, 1)
        queries, items = rows.of(numbers)
        for name, wanted in (("query", queries), ("item", items)):
            if batch.column(name).to_pylist() != wanted:
                found.say(f"another {name} in the rows {numbers[:3]}...")
        scores = np.array([batch.column(name).to_numpy(zero_copy_only=False) for name in SCORES], np.float64).T
        right = (scores >= 0.0) & (scores <= 1.0)
        if quick is not None:
            right = np.isclose(scores, quick.quick_scores(queries, items), rtol=1e-12, atol=0.0)
        for place in np.flatnonzero(~right.all(axis=1)):
            found.say(f"row {numbers[place]} has the scores {scores[place].tolist()}")
    for number in np.flatnonzero(seen != 1):
        found.say(f"row {number} is there {seen[number]} times")
    return found


def check_sample(rows: Rows, scored: Iterable[pa.RecordBatch], client: Client, found: Checked) -> None:
    """Have the service score some rows by themselves, and compare their scores with those of the table."""
    step = max(1, rows.count // SAMPLE)
    for batch in scored:
        for row in batch.filter(pa.array(np.asarray(batch.column("number")) % step == 0)).to_pylist():
            query, item = rows.of([row["number"]])
            (alone,) = client.score(query[0], item, labels=LABELS).scores
            if not np.allclose([row[name] for name in SCORES], alone, rtol=0.0, atol=1e-6):
                found.say(f"row {row['number']} has {[row[name] for name in SCORES]}, and alone {list(alone)}")


def batches_of(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield what was written to a Parquet file, or to a folder with several. Of JSON lines, the same."""
    if path.suffix == ".jsonl":
        read: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        yield from pa.Table.from_pylist(read).to_batches()
        return
    for file in sorted(path.glob("*.parquet")) if path.is_dir() else [path]:
        yield from pq.ParquetFile(file).iter_batches(columns=COLUMNS)
