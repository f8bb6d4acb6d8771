"""The queue beside plain Celery: ``python -m benchmarks.queue --database-url URL --redis-url URL``.

Single-item jobs that share queries go through the store and the API's ringer to one worker process whose engine takes
no time; the same work goes as tasks to one Celery worker (solo pool, late acknowledgement) that keeps results in Redis.
Both are timed in two ways: working off a backlog that was there before the worker was, by the times of the first and
the last result; and end to end, from the first submission to a worker that is running until every result has been read.
There are 32 submitters at a time. Ours are coroutines that share an :class:`api.acceptance.accepting.Acceptor`, as the
requests of an API process do; those of Celery are threads, in which FastAPI runs what blocks. Four threads read the
results of either, one by one.
Then single jobs are submitted to the idle worker, for the time from their acceptance to their claim on the database's
clock.
The database must be empty, and what is in that Redis database is deleted. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime

import numpy as np
import redis
from sqlalchemy import func, select

from api.acceptance.accepting import Acceptor
from api.acceptance.ringing import Ringer
from api.budget import Budget
from api.metrics import Metrics
from api.threads import Threads
from api.waiting.ended_jobs import EndedJobs
from bell.redis_bell import RedisBell
from benchmarks.instant_worker import CARD
from jobs.invariant_watch import Watch
from jobs.queue.accept import accept
from jobs.queue.read import get_job, read_scores, statuses
from jobs.queue.worker_registry import live_workers
from jobs.store.database import Database
from jobs.store.migration import migrate
from jobs.store.records import Submission
from jobs.store.tables import jobs
from scoring.layout import Rows
from scoring.work import chunk_of
from settings.bell import BellSettings
from settings.limits import LimitSettings
from settings.store import StoreSettings

QUERIES = 50
QUERY, ITEM = 100, 20
"""Tokens of a query and of an item."""
LABELS = (1, 2)
SUBMITTERS = 32
"""That submit at the same time, each one job after another."""
READERS = 4
LOOK_SECONDS = 0.02
IDS_PER_LOOK = 100
TENANT = "default"
FRESH_SECONDS = 20.0
"""A worker that was seen within this time is live."""


@contextmanager
def process(command: list[str], variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process until the block ends."""
    running = subprocess.Popen(
        [sys.executable, "-m", *command],
        env=os.environ | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield running
    finally:
        running.terminate()
        running.wait(60)


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    while not condition():
        time.sleep(LOOK_SECONDS)


class Ours:
    """Jobs in the store, with a bell over Redis."""

    def __init__(self, database_url: str, redis_url: str) -> None:
        self._database = Database.open(StoreSettings(database_url=database_url))
        migrate(self._database)
        self._ringer = Ringer(RedisBell(redis_url, BellSettings().bell_prefix))
        self._ringer.__enter__()
        self._variables = {"SCORELINE_DATABASE_URL": database_url, "SCORELINE_REDIS_URL": redis_url}

    def _job(self, number: int) -> Submission:
        """Return a job of one item."""
        item = np.full(ITEM, number % CARD.vocabulary, np.int32)
        return Submission(
            model=CARD.name,
            work_key=CARD.work_key,
            prefix=np.full(QUERY, number % QUERIES, np.int32),
            chunks=[chunk_of(0, Rows.pack([item], [QUERY]))],
            label_token_ids=LABELS,
            prompt_tokens=QUERY + ITEM,
            total_items=1,
            tenant=TENANT,
        )

    def submit(self, number: int) -> str:
        """Submit one job while no other is submitted."""
        job_id = accept(self._database, self._job(number)).job_id
        self._ringer.ring(CARD.name)
        return job_id

    def submit_all(self, count: int) -> list[str]:
        """Submit jobs as requests of one API process do."""
        return asyncio.run(self._submit_all(count))

    async def _submit_all(self, count: int) -> list[str]:
        metrics = Metrics(self._database, Watch(self._database), FRESH_SECONDS, EndedJobs(), Budget(LimitSettings()))
        acceptor = Acceptor(self._database, Threads(), self._ringer, metrics)
        numbers = iter(range(count))

        async def submitter() -> list[str]:
            return [(await acceptor.accept(self._job(number))).job_id for number in numbers]

        return [job_id for ids in await asyncio.gather(*(submitter() for _ in range(SUBMITTERS))) for job_id in ids]

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run one worker; the block begins when it is ready."""
        with process(["benchmarks.instant_worker"], self._variables):
            until(lambda: live_workers(self._database, FRESH_SECONDS))
            yield
        until(lambda: not live_workers(self._database, FRESH_SECONDS))

    def wait(self, job_ids: list[str]) -> None:
        """Wait until all have ended."""
        for start in range(0, len(job_ids), IDS_PER_LOOK):
            some = job_ids[start : start + IDS_PER_LOOK]
            while not all(status.ended for status in statuses(self._database, some).values()):
                time.sleep(LOOK_SECONDS)

    def read(self, job_id: str) -> None:
        """Read the scores of a job."""
        assert len(read_scores(self._database, TENANT, job_id, 0, 10).indices) == 1

    def working_off(self, count: int) -> float:
        """Jobs a second, from the first claim to the last commit."""
        job_ids = self.submit_all(count)
        with self.worker():
            self.wait(job_ids)
        with self._database.read() as tx:
            of_these = jobs.c.id >= min(job_ids)
            first, last = tx.execute(
                select(func.min(jobs.c.started_at), func.max(jobs.c.finished_at)).where(of_these)
            ).one()
        return count / float(last - first)

    def idle(self, count: int) -> list[float]:
        """Milliseconds from acceptance to claim, of one job after another."""
        found = []
        with self.worker():
            for number in range(count):
                job_id = self.submit(number)
                time.sleep(LOOK_SECONDS)  # a client that asks at once competes with the ringing thread of its process
                self.wait([job_id])
                job = get_job(self._database, TENANT, job_id)
                assert job.started_at is not None
                found.append(1e3 * (job.started_at - job.created_at))
        return found


class Plain:
    """Celery tasks with results in Redis."""

    def __init__(self, redis_url: str) -> None:
        os.environ["PLAIN_CELERY_URL"] = redis_url
        from benchmarks.plain_celery import app, score

        self._app, self._score = app, score
        self._redis = redis.Redis.from_url(redis_url)

    def submit(self, number: int) -> str:
        """Submit a task of one item."""
        query, item = [number % QUERIES] * QUERY, [number % CARD.vocabulary] * ITEM
        return str(self._score.delay(query, [item], list(LABELS)).id)

    def submit_all(self, count: int) -> list[str]:
        """Submit tasks from threads."""
        with ThreadPoolExecutor(SUBMITTERS) as threads:
            return list(threads.map(self.submit, range(count)))

    @contextmanager
    def worker(self) -> Iterator[None]:
        """One worker; it is ready when it says so."""
        command = ["celery", "-A", "benchmarks.plain_celery", "worker", "--pool", "solo", "--loglevel", "error"]
        with process([*command, "--without-gossip", "--without-mingle"], {}):
            until(lambda: self._app.control.ping(timeout=0.5))
            yield

    def wait(self, task_ids: list[str]) -> None:
        """Wait until all have ended."""
        keys = [f"celery-task-meta-{task_id}" for task_id in task_ids]
        until(lambda: all(self._redis.mget(keys)))

    def read(self, task_id: str) -> None:
        """Read the result of a task."""
        assert self._app.AsyncResult(task_id).get(timeout=60) == [[0.0, 0.0]]

    def working_off(self, count: int) -> float:
        """Tasks a second, from the first result to the last."""
        task_ids = self.submit_all(count)
        command = ["celery", "-A", "benchmarks.plain_celery", "worker", "--pool", "solo", "--loglevel", "error"]
        with process([*command, "--without-gossip", "--without-mingle"], {}):
            self.wait(task_ids)
        found = [self._redis.get(f"celery-task-meta-{task_id}") for task_id in task_ids]
        done = [datetime.fromisoformat(json.loads(str(meta, "utf-8"))["date_done"]) for meta in found if meta]
        return (count - 1) / (max(done) - min(done)).total_seconds()


def end_to_end(queue: Ours | Plain, count: int) -> float:
    """Jobs a second, from the first submission until every result is read."""
    with queue.worker(), ThreadPoolExecutor(READERS) as threads:
        started = time.perf_counter()
        ids = queue.submit_all(count)
        queue.wait(ids)
        list(threads.map(queue.read, ids))
        return count / (time.perf_counter() - started)


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--idle-jobs", type=int, default=200)
    options = parser.parse_args()
    redis.Redis.from_url(options.redis_url).flushdb()
    ours, plain = Ours(options.database_url, options.redis_url), Plain(options.redis_url)
    report: dict[str, object] = {"jobs": options.jobs}
    for name, measure in {
        "backlog_per_s": lambda queue: queue.working_off(options.jobs),
        "end_to_end_per_s": lambda queue: end_to_end(queue, options.jobs),
    }.items():
        found = {"scoreline": measure(ours), "plain_celery": measure(plain)}
        ratio = found["scoreline"] / found["plain_celery"]
        report[name] = {who: round(rate, 1) for who, rate in found.items()} | {"ratio": round(ratio, 2)}
        print(f"{name}: {report[name]}", file=sys.stderr)
    idle = ours.idle(options.idle_jobs)
    p99 = statistics.quantiles(idle, n=100)[98]
    report["accept_to_claim_ms"] = {"median": round(statistics.median(idle), 2), "p99": round(p99, 2)}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
