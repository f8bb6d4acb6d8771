"""The engines that have the rows of a table scored, each as its users would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.pairs import COMMAND
from benchmarks.runs import LABELS
from benchmarks.tables.kills import TASK
from benchmarks.tables.rows import Rows
from scoreline.client import Client
from scoreline.server_process import python_command

PATIENCE = 300.0
PROCESSES = 2
TASK_FAILURES = 8
LOOP_ROWS = 2_000
QUERY_AND_ITEM: dict[str, Any] = {"query_column": "query", "item_column": "item"}


@dataclass(frozen=True, slots=True)
class Work:
    """What an engine gets."""

    source: Path  # a Parquet file
    target: Path
    url: str
    key: str
    rows: int
    part_rows: int
    run: str

    @property
    def of_service(self) -> dict[str, Any]:
        """What is asked of which service, without the names of columns."""
        return {"labels": list(LABELS), "url": self.url, "api_key": self.key, "patience": PATIENCE}

    @property
    def parts(self) -> int:
        """In how many parts the rows are divided."""
        return -(-self.rows // self.part_rows)


class Engine(ABC):
    """An engine."""

    target_name: ClassVar[str] = "scored.parquet"
    in_order: ClassVar[bool] = True  # whether it keeps the order of rows
    kinds: ClassVar[Mapping[str, re.Pattern[str]]] = {}  # what the command lines of its processes look like

    def table(self, rows: Rows) -> Rows:
        """Return the rows that it scores of those that there are."""
        return rows

    def start(self) -> None:
        """Do what it needs before it can score."""
        return

    @abstractmethod
    def score(self, work: Work) -> float | None:
        """Score all rows, and write them. Return the seconds of it; None: the time of this call."""

    def stop(self) -> None:
        """End its processes."""
        return


class Ray(Engine):
    """``scoreline.ray.scored``."""

    target_name = "scored"
    in_order = False
    kinds: ClassVar[Mapping[str, re.Pattern[str]]] = {
        TASK: re.compile(r"^ray::.*Scorer"),
        "raylet": re.compile(r"/raylet "),
    }

    def start(self) -> None:
        import ray

        ray.init(num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        ray.data.DataContext.get_current().enable_progress_bars = False

    def score(self, work: Work) -> None:
        import ray

        import scoreline.ray

        dataset = ray.data.read_parquet(str(work.source)).repartition(target_num_rows_per_block=work.part_rows)
        asked = {**QUERY_AND_ITEM, **work.of_service, "run": work.run}
        scored = scoreline.ray.scored(dataset, batch_size=work.part_rows, workers=PROCESSES, **asked)
        scored.write_parquet(str(work.target))

    def stop(self) -> None:
        import ray

        ray.shutdown()


class Spark(Engine):
    """``scoreline.spark.scored``."""

    target_name = "scored"
    in_order = False
    kinds: ClassVar[Mapping[str, re.Pattern[str]]] = {
        TASK: re.compile(r"pyspark[./](daemon|worker)"),
        "java": re.compile(r"^\S*java "),
    }

    def start(self) -> None:
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.showConsoleProgress": "false",
        }
        building = SparkSession.builder.master(f"local[{PROCESSES},{TASK_FAILURES}]").config(map=settings)
        self._session = building.getOrCreate()
        self._session.sparkContext.setLogLevel("OFF")

    def score(self, work: Work) -> None:
        import scoreline.spark

        frame = self._session.read.parquet(str(work.source)).repartition(work.parts, "query")
        frame = frame.sortWithinPartitions("query")
        scored = scoreline.spark.scored(frame, **QUERY_AND_ITEM, **work.of_service, run=work.run)
        scored.write.parquet(str(work.target))

    def stop(self) -> None:
        java = self._session.sparkContext._gateway.proc
        self._session.stop()
        java.stdin.close()  # which ends it
        java.wait()


class DuckDB(Engine):
    """A function that ``scoreline.duckdb.register`` makes."""

    def start(self) -> None:
        import duckdb

        import scoreline.duckdb  # noqa: F401

        self._connection = duckdb.connect()
        self._connection.execute(f"SET threads = {PROCESSES}")

    def score(self, work: Work) -> None:
        import scoreline.duckdb

        scoreline.duckdb.register(self._connection, "score", **work.of_service)
        self._connection.execute(
            f"COPY (SELECT number, query, item, s.yes, s.no FROM (SELECT number, query, item, score(query, item) AS s "
            f"FROM read_parquet('{work.source}'))) TO '{work.target}' (FORMAT parquet)"
        )

    def stop(self) -> None:
        self._connection.close()


class Polars(Engine):
    """``scoreline.frames.score`` with a lazy frame."""

    def start(self) -> None:
        import polars  # noqa: F401

        from scoreline import frames  # noqa: F401

    def score(self, work: Work) -> None:
        import polars as pl

        from scoreline import frames

        asked: dict[str, Any] = {**QUERY_AND_ITEM, **work.of_service}
        frames.score(pl.scan_parquet(work.source), **asked).sink_parquet(work.target)


class Run(Engine):
    """The command ``scoreline run``."""

    kinds: ClassVar[Mapping[str, re.Pattern[str]]] = {"command": re.compile(r"from scoreline\.command import main")}

    def score(self, work: Work) -> float:
        labels = [word for label in LABELS for word in ("--label", label)]
        columns = ["--query-column", "query", "--item-column", "item"]
        files = [str(work.source), "-o", str(work.target)]
        command = python_command(*COMMAND, "run", *files, *columns, *labels, "--json")
        variables = os.environ | {"SCORELINE_URL": work.url, "SCORELINE_API_KEY": work.key}
        said = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout
        return float(json.loads(said.splitlines()[-1])["seconds"])


class Loop(Engine):
    """What a function would do that calls the service once for each row."""

    target_name = "scored.jsonl"

    def table(self, rows: Rows) -> Rows:
        """Return fewer rows, with as many of each query."""
        count = min(rows.count, LOOP_ROWS)
        return replace(rows, count=count, queries=max(1, rows.queries * count // rows.count))

    def score(self, work: Work) -> float:
        from pyarrow import parquet as pq

        rows = pq.read_table(work.source).to_pylist()
        with Client(work.url, api_key=work.key) as client, work.target.open("w") as file:
            began = time.monotonic()
            for row in rows:
                (scores,) = client.score(row["query"], [row["item"]], labels=LABELS).scores
                named = dict(zip((label.strip() for label in LABELS), scores, strict=True))
                print(json.dumps({**row, **named}), file=file)
            return time.monotonic() - began


ENGINES: dict[str, type[Engine]] = {
    "ray": Ray,
    "spark": Spark,
    "duckdb": DuckDB,
    "polars": Polars,
    "run": Run,
    "loop": Loop,
}
KILLED = ("ray", "spark")
"""Engines whose processes can be killed, because they begin their tasks again."""
