"""Whether a claim takes longer behind a long backlog: ``python -m benchmarks.claims --database-url URL``.

A thousand tenants have waiting work, 1,000 chunks in all or 1,000,000, while another connection holds a snapshot from
before the first claim: what claims leave behind can't be cleaned away. Claims of one chunk and of twenty are timed, one
after another, on each backlog in turn; of the short one, twenty chunks are twenty tenants', of the long one a single
tenant's. The database must be empty, its user one who may CHECKPOINT, and is left full; without a URL, a
SQLite file of the benchmark's own is used. The plans of a claim's queries on the long backlog go to standard error; the
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, event, insert, select, text

from checkpoints.card import ModelCard
from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.store.database import Database
from jobs.store.migration import migrate
from jobs.store.records import Submission
from jobs.store.tables import batches, chunk_inputs, chunks, flows, jobs, prefixes
from scoring.layout import Rows
from scoring.work import chunk_of
from settings.store import StoreSettings

CARD = ModelCard("benchmark", context_length=4_096, vocabulary=50_000, tokenizer_fingerprint="f" * 64)
TENANTS = 1_000
BACKLOGS = (1_000, 1_000_000)
ROWS_PER_INSERT = 10_000
BUDGET = 1_000_000
"""Budget of a claim in tokens: more than its chunks need."""
SIZES = (1, 20)
"""Chunks of a claim."""


def submit_one_each(database: Database) -> list[tuple[str, int]]:
    """Accept a job of one chunk for every tenant. Return the id and the prefix of each."""
    rows = Rows.pack([[1] * 10], [10])
    for tenant in range(TENANTS):
        accept(
            database,
            Submission(
                model=CARD.name,
                work_key=CARD.work_key,
                prefix=np.full(10, tenant, np.int32),
                chunks=[chunk_of(0, rows)],
                label_token_ids=(1,),
                prompt_tokens=20,
                total_items=1,
                tenant=f"tenant {tenant}",
            ),
        )
    with database.read() as tx:
        return [(row.id, row.prefix_id) for row in tx.execute(select(jobs.c.id, jobs.c.prefix_id))]


def multiply(database: Database, backlog: int) -> None:
    """Copy the chunks until ``backlog`` of them wait, due one after another, tenants in turn."""
    with database.read() as tx:
        originals = [dict(row) for row in tx.execute(select(chunks).order_by(chunks.c.id)).mappings()]
        packed = tx.scalar(select(chunk_inputs.c.rows).limit(1))
    next_id, last = originals[-1]["id"] + 1, originals[-1]["due_at"]
    while next_id <= originals[-1]["id"] + backlog - len(originals):
        stop = min(next_id + ROWS_PER_INSERT, originals[-1]["id"] + backlog - len(originals) + 1)
        copies = [originals[n % len(originals)] | {"id": n, "due_at": last + n * 1e-3} for n in range(next_id, stop)]
        with database.write() as tx:
            tx.execute(insert(chunks), copies)
            tx.execute(insert(chunk_inputs), [{"chunk_id": copy["id"], "rows": packed} for copy in copies])
        next_id = stop


def forget(database: Database) -> None:
    """Empty the tables."""
    with database.write() as tx:
        for table in (chunk_inputs, chunks, batches, jobs, prefixes, flows):
            tx.execute(delete(table))


def settle(database: Database) -> None:
    """Update statistics and clean up pages, as in a database that was not filled a moment ago."""
    with database.engine.connect() as connection:
        if database.is_sqlite:
            connection.execute(text("ANALYZE"))
            connection.commit()
        else:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            for command in ("VACUUM ANALYZE", "CHECKPOINT"):
                connection.execute(text(command))


@contextmanager
def old_snapshot(database: Database) -> Iterator[None]:
    """Keep a transaction that has read something open."""
    with database.engine.connect() as connection:
        if not database.is_sqlite:
            connection.execution_options(isolation_level="REPEATABLE READ")
            connection.execute(text("SET idle_in_transaction_session_timeout TO 0"))
        connection.execute(select(chunks.c.id).limit(1))
        yield


@contextmanager
def plans(database: Database) -> Iterator[list[str]]:
    """Collect the plan of every query on waiting chunks and flows."""
    found: list[str] = []
    explaining = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "

    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT") and ("'waiting'" in statement or "FROM lanes" in statement):
            rows = connection.exec_driver_sql(explaining + statement, parameters).all()
            found.append("\n".join("  " + str(row[-1]) for row in rows))

    event.listen(database.engine, "before_cursor_execute", explain)
    try:
        yield found
    finally:
        event.remove(database.engine, "before_cursor_execute", explain)


def milliseconds(database: Database, claims: int, size: int) -> dict[str, float]:
    """Time claims of ``size`` chunks each."""
    taken = []
    for _ in range(claims):
        started = time.perf_counter()
        claimed = claim(database, "benchmark", CARD, BUDGET, max_chunks=size)
        taken.append(1e3 * (time.perf_counter() - started))
        assert claimed is not None
        assert len(claimed.chunk_ids) == size
    return {"median_ms": round(statistics.median(taken), 2), "worst_ms": round(max(taken), 2)}


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", help="of an empty database; default: a SQLite file")
    parser.add_argument("--claims", type=int, default=40, help="on each backlog")
    parser.add_argument("--backlogs", type=int, nargs="+", default=list(BACKLOGS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.database_url or f"sqlite:///{Path(folder) / 'store.db'}"
        # The statements of settle() and forget() take long.
        database = Database.open(StoreSettings(database_url=url, statement_seconds=3_600.0))
        migrate(database)
        found = {}
        for backlog in options.backlogs:
            forget(database)
            submit_one_each(database)
            multiply(database, backlog)
            settle(database)
            with old_snapshot(database):
                found[str(backlog)] = {str(size): milliseconds(database, options.claims, size) for size in SIZES}
            print(f"{backlog} chunks wait: {found[str(backlog)]}", file=sys.stderr)
        with plans(database) as shown:
            claim(database, "benchmark", CARD, BUDGET, max_chunks=max(SIZES))
        for plan in dict.fromkeys(shown):
            print(plan, end="\n\n", file=sys.stderr)
        database.close()
    print(json.dumps({"database": url.partition(":")[0], "tenants": TENANTS, "claims": found}))


if __name__ == "__main__":
    main()
