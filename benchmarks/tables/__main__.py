"""Measure how engines have the rows of a table scored: ``python -m benchmarks.tables ray --rows 100000 --queries 100``.

An API and a worker run in processes of their own, on a private PostgreSQL (or SQLite, with ``--database sqlite``). The
worker takes no time, and remembers 1,000 queries; with ``--real`` it has the demonstration model, and with ``--model``
another one. Rows of a query are side by side. ``loop`` calls the service once for each row, of 2,000 rows at most. Ray,
PySpark and DuckDB must be installed, and are looked for on PYTHONPATH as well.

With ``--kill``, for Ray and Spark, processes of the engine that score are killed (SIGKILL) at least five times while it
runs, and the API and the worker once each, which stay away for ``--away`` seconds.

Afterwards, every row is compared with what it must be: it is there once, unchanged, in its place if the engine keeps
the order, and has the score that the quick worker's formula gives. Of a real model, 200 rows are scored once more by
themselves. Prints one JSON object as the last line: ``seconds`` is the time of scoring without the start of the engine,
``prefills_per_query`` how often a query had to be computed (with a real model, short queries may be computed with each
row; ``--query-words`` makes them longer), ``items_scored`` what the service has scored in all of its jobs,
``before_mb`` the memory of this process before, and ``driver_mb`` its peak, or that of the command, while it scored.
The exit status is 1 if a row is wrong, missing, double, or was scored twice, or if too few processes were killed.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from benchmarks.batches.__main__ import KEY, Service, quick_worker
from benchmarks.pairs import WORKER
from benchmarks.shapes import DEMONSTRATION
from benchmarks.tables.engines import ENGINES, KILLED, Engine, Work
from benchmarks.tables.kills import LEAST_TASKS_KILLED, TASK, Meddler
from benchmarks.tables.rows import Prefixes, Rows, batches_of, check, check_sample
from benchmarks.upload import READY_SECONDS, memory_mb
from scoreline.client import Client, Unreachable
from tests.services import wait_until

REMEMBERED = 1_000
TOTALS = "SELECT count(*), sum(total_items), sum(scored_items), sum(cached_tokens) FROM jobs"


def main() -> int:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--query-words", type=int, default=0, help="that queries begin with, to be longer")
    parser.add_argument("--part-rows", type=int, default=5_000, help="of a batch of Ray, or a partition of Spark")
    parser.add_argument("--kill", action="store_true", help="kill processes meanwhile; for ray and spark")
    parser.add_argument("--away", type=float, default=0, help="seconds without an API, or a worker, after its kill")
    parser.add_argument("--real", action="store_true", help="have the demonstration model compute")
    parser.add_argument("--model", type=Path, help="a folder with a model that computes")
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    given = parser.parse_args()
    if given.kill and given.engine not in KILLED:
        parser.error(f"--kill needs one of {', '.join(KILLED)}")
    # Processes of engines may have another working folder.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in paths if path)
    engine = ENGINES[given.engine]()
    rows = engine.table(Rows(given.rows, given.queries, given.query_words))
    is_real = given.real or given.model is not None
    model = (given.model or DEMONSTRATION).resolve()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scoreline-tables-")))
        rows.write(folder / "rows.parquet")
        worker = WORKER if is_real else quick_worker(REMEMBERED)
        service = Service(stack, folder, given.database, worker, SCORELINE_MODEL=str(model))
        client = stack.enter_context(Client(service.url, api_key=KEY))
        wait_until(lambda: _is_ready(client), "the service is ready", READY_SECONDS)
        target = folder / engine.target_name
        run = f"benchmark-{secrets.token_hex(4)}"
        work = Work(folder / "rows.parquet", target, service.url, KEY, rows.count, given.part_rows, run)
        began = time.monotonic()
        engine.start()
        stack.callback(engine.stop)
        start_seconds = time.monotonic() - began
        report = _scored(engine, work, service, kills=given.kill, away_seconds=given.away)
        prefixes = Prefixes(model)
        tokens, of_queries = prefixes.cached_at_most(rows)
        report["prefills_per_query"] = round((tokens - report.pop("cached_tokens")) / of_queries, 3)
        found = check(rows, batches_of(target), in_order=engine.in_order, quick=None if is_real else prefixes)
        if is_real:
            check_sample(rows, batches_of(target), client, found)
    if not report["items_in_jobs"] == report["items_scored"] == rows.count:
        found.say(f"{report['items_in_jobs']} items are in jobs and {report['items_scored']} scored, of {rows.count}")
    if given.kill and report["kills"].get(TASK, 0) < LEAST_TASKS_KILLED:
        found.say(f"only {report['kills']} were killed: take more rows")
    for problem in found.wrong:
        print(problem, file=sys.stderr)
    head = {"engine": given.engine, "database": given.database, "model": model.name if is_real else None}
    head |= {"rows": found.rows, "queries": rows.queries, "start_seconds": round(start_seconds, 1)}
    print(json.dumps({**head, **report, "problems": found.problems, "is_right": not found.problems}))
    return int(found.problems > 0)


def _scored(engine: Engine, work: Work, service: Service, *, kills: bool, away_seconds: float) -> dict[str, Any]:
    """Have all rows scored, and return what that took."""
    database = create_engine(service.variables["SCORELINE_DATABASE_URL"])

    def totals() -> list[int]:
        with database.connect() as connection:
            return [int(total or 0) for total in connection.execute(text(TOTALS)).one()]

    meddler = Meddler(engine.kinds, service, lambda: totals()[2] / work.rows, kills=kills, away_seconds=away_seconds)
    before_mb = memory_mb(os.getpid(), "VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak of the memory begins anew
    meddler.start()
    began = time.monotonic()
    try:
        own_seconds = engine.score(work)
        seconds = time.monotonic() - began if own_seconds is None else own_seconds
    finally:
        meddler.stop()
    own_mb = memory_mb(os.getpid(), "VmHWM")
    jobs, in_jobs, scored, cached = totals()
    database.dispose()
    return {
        "seconds": round(seconds, 2),
        "rows_per_s": round(work.rows / seconds, 1),
        "before_mb": before_mb,
        "driver_mb": meddler.peak_mb.pop("command", own_mb),
        "peak_mb": meddler.peak_mb,
        "kills": meddler.made,
        "jobs": jobs,
        "items_in_jobs": in_jobs,
        "items_scored": scored,
        "cached_tokens": cached,
    }


def _is_ready(client: Client) -> bool:
    try:
        return bool(client.models()[0].live_workers)
    except Unreachable:
        return False


if __name__ == "__main__":
    sys.exit(main())
