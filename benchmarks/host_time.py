"""How many items a second the host keeps up with: ``python -m benchmarks.host_time``.

The engine computes whole steps as on an accelerator, with programs that take no time: they have the arguments of the
real ones, and return zeros. What is left is Python and the calls of programs. Each workload goes through the engine
alone, and as jobs through claims, engine and commits in PostgreSQL. Beside items a second there are items in a second
of the processor time of this process and of PostgreSQL, which other work on the machine changes little. PostgreSQL is
the benchmark's own, with its usual settings. The last line is JSON.

With ``--device-ms``, steps take so long on a device of their own instead, and the report says for which share of the
time that device waits for the host, alone and beside urgent calls.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

import jax
import structlog

from benchmarks.calls.processor_time import cpu_seconds, family
from benchmarks.own_device import OwnDevice, ProgramsOfOwnDevice
from checkpoints.card import ModelCard
from jobs.queue.accept import accept
from jobs.store.database import Database
from jobs.store.migration import migrate
from jobs.store.records import Submission
from model.engine import Engine
from model.platforms import Platform
from model.whole_steps.forward import WholeStepForward
from scoring.layout import GroupWork, Rows
from scoring.options import Priority
from scoring.work import chunk_of
from settings.engine import EngineSettings
from settings.scoring import ScoringSettings
from settings.store import StoreSettings
from tests.services import PostgresServer
from tools.tpu.programs import without_weights
from tools.tpu.shapes import QWEN3_06B
from tools.tpu.workloads import Workload, alike, labels_of
from workers.engine_loop.claimer import LoopTiming
from workers.engine_loop.loop import ScoringLoop
from workers.engine_loop.watchdog import Watchdog

CONFIG = replace(QWEN3_06B, layers=1, vocabulary=4_096, context=16_384)
"""A decoder whose programs have as many arguments, and as large outputs, as those of the whole model."""
CARD = ModelCard("host time", CONFIG.context, CONFIG.vocabulary, "f" * 64)
STEP_TOKENS = 2_048
CACHE_BYTES = 2**28
WORKLOADS = {
    "2000x500x20": (alike(2_000, 500, 20), 100),
    "300x10x20": (alike(300, 10, 20), 1_000),
}
"""The work of one job, and how many jobs are timed."""

CALL = alike(40, 10, 20)
"""What an urgent call asks."""

CALL_SECONDS = 0.1
"""Between two urgent calls."""


def made_up_engine(device: OwnDevice | None = None) -> Engine:
    """Return an engine that computes whole steps, without weights. device: None for programs that take no time."""
    platform = replace(
        Platform.of(jax.devices()[0]),
        whole_steps=True,
        default_step_tokens=STEP_TOKENS,
        largest_block=256,
        equal_sizes=0,
        tied_as_rows=True,
        bf16_as_integers=False,
    )
    settings = EngineSettings(dtype="bfloat16", step_tokens=STEP_TOKENS, prefix_cache_bytes=CACHE_BYTES)
    engine = Engine(without_weights(CONFIG, platform, "bfloat16"), settings, CARD, "none", platform)
    forward = engine._forward
    assert isinstance(forward, WholeStepForward)
    decoder = forward.executables.decoder
    forward.executables = ProgramsOfOwnDevice(decoder, platform, check=lambda key, executable: None, device=device)
    return engine


@dataclass(frozen=True, slots=True)
class Clocks:
    """What has passed: seconds, and seconds of processor time."""

    wall: float
    worker: float  # processor time of this process
    database: float  # of PostgreSQL
    busy: float = 0.0  # of the device
    idle: float = 0.0
    steps: int = 0

    @classmethod
    def now(cls, server: PostgresServer | None = None, device: OwnDevice | None = None) -> Clocks:
        of_server = 0.0 if server is None else cpu_seconds(family([server.process_id]))
        of_device = () if device is None else (device.busy_seconds, device.idle_seconds, device.steps)
        return cls(time.perf_counter(), time.process_time(), of_server, *of_device)

    def __sub__(self, other: Clocks) -> Clocks:
        return Clocks(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


def through_the_engine(engine: Engine, workload: Workload, jobs: int, repeat: int) -> Clocks:
    """Score a workload several times in one call, each time behind a query that is not in the cache."""
    work = [
        GroupWork(f"job {number} of repeat {repeat}", group.prefix, group.chunks)
        for number in range(jobs)
        for group in workload.work(CONFIG.vocabulary)
    ]
    started = Clocks.now()
    scored = sum(len(chunk.scores) for chunk in engine.score(work, lambda: None))
    assert scored == jobs * workload.items
    return Clocks.now() - started


class EndBell:
    """A bell that only counts jobs that have ended. on_count: what is called at some counts; uncounted: other jobs."""

    def __init__(self, on_count: Mapping[int, Callable[[], None]], uncounted: Collection[str]) -> None:
        self._ended = 0
        self._on_count = dict(on_count)
        self._uncounted = uncounted

    def ring(self, model: str) -> None:
        pass

    def announce(self, job_ids: Sequence[str], results: Mapping[str, str] | None = None) -> None:
        self._ended += len(set(job_ids) - set(self._uncounted))
        for count in [count for count in self._on_count if count <= self._ended]:
            self._on_count.pop(count)()


def submit(
    database: Database, workload: Workload, number: int, chunk_items: int, priority: Priority = Priority.NORMAL
) -> str:
    """Accept a job of the workload's only group, cut into chunks as the API cuts it, behind a query of its own."""
    (group,) = workload.sequences(CONFIG.vocabulary)
    query = group.query.copy()
    query[:2] = divmod(number, CONFIG.vocabulary)
    parts = [group.items[first : first + chunk_items] for first in range(0, len(group.items), chunk_items)]
    chunks = [chunk_of(chunk_items * n, Rows.pack(part, [len(query)] * len(part))) for n, part in enumerate(parts)]
    accepted = accept(
        database,
        Submission(
            model=CARD.name,
            work_key=CARD.work_key,
            prefix=query,
            chunks=chunks,
            label_token_ids=labels_of(CONFIG.vocabulary),
            prompt_tokens=sum(int(chunk.rows.sequence_lengths.sum()) for chunk in chunks),
            total_items=len(group.items),
            priority=priority,
        ),
    )
    return accepted.job_id


def through_the_queue(
    engine: Engine,
    server: PostgresServer,
    workload: Workload,
    jobs: int,
    repeat: int,
    device: OwnDevice | None = None,
    call_seconds: float | None = None,
) -> Clocks:
    """Work off jobs by a scoring loop, behind a tenth as many, in which it finds out how much it can claim.

    call_seconds: how often somebody makes an urgent call meanwhile; None: nobody does.
    """
    name = server.create_database(name=f"repeat_{repeat}_of_{workload.items}_items")
    database = Database.open(StoreSettings(database_url=server.url(name)))
    migrate(database)
    before = -(-jobs // 10)
    for number in range(before + jobs):
        submit(database, workload, number, ScoringSettings().chunk_items)
    passed: list[Clocks] = []

    def note() -> None:
        passed.append(Clocks.now(server, device))

    def end() -> None:
        note()
        loop.stop()

    calls: set[str] = set()

    def call() -> None:
        number = before + jobs
        while call_seconds is not None and not loop.stopping.wait(call_seconds):
            calls.add(submit(database, CALL, number, ScoringSettings().chunk_items, Priority.INTERACTIVE))
            loop.wake()
            number += 1

    watchdog = Watchdog(60.0, lambda: None)
    timing = LoopTiming(claim_seconds=4.0, poll_seconds=2.0)
    bell = EndBell({before: note, before + jobs: end}, calls)
    loop = ScoringLoop(database, bell, engine, watchdog, timing, worker_id="host time", card=CARD, claims_ahead=True)
    with ThreadPoolExecutor(1) as callers:
        calling = callers.submit(call)
        loop.run()
        calling.result()
    watchdog.close()
    database.close()
    return passed[1] - passed[0]


def rates(items: int, passed: Clocks) -> dict[str, int]:
    """Return the figures of a run."""
    found = {"items_per_s": items / passed.wall, "items_per_processor_s": items / passed.worker}
    if passed.database:
        found["items_per_processor_s_of_postgresql"] = items / passed.database
    return {name: round(rate) for name, rate in found.items()}


def times(engine: Engine, server: PostgresServer, repeats: int) -> dict[str, Any]:
    """Time all workloads, through the engine and through the queue."""
    report: dict[str, dict[str, dict[str, int]]] = {}
    for name, (workload, jobs) in WORKLOADS.items():
        through_the_engine(engine, workload, 2, -1)  # compiles the programs
        runs: dict[str, Callable[[int], Clocks]] = {
            "engine": partial(through_the_engine, engine, workload, jobs),
            "queue": partial(through_the_queue, engine, server, workload, jobs),
        }
        report[name] = {}
        for what, run in runs.items():
            found = [rates(jobs * workload.items, run(repeat)) for repeat in range(repeats)]
            report[name][what] = max(found, key=lambda rate: rate["items_per_processor_s"])
            print(f"{name}, {what}: {found}", file=sys.stderr)
    return report


def idling(engine: Engine, server: PostgresServer, device: OwnDevice, jobs: int, repeats: int) -> dict[str, Any]:
    """Say for which share of the time a device waits for the host, without urgent calls and with some."""
    name, (workload, _) = next(iter(WORKLOADS.items()))
    through_the_engine(engine, workload, 2, -1)  # compiles the programs
    report: dict[str, Any] = {}
    for number, (what, call_seconds) in enumerate({"alone": None, "beside calls": CALL_SECONDS}.items()):
        found = [
            through_the_queue(engine, server, workload, jobs, repeat, device, call_seconds)
            for repeat in range(number * repeats, (number + 1) * repeats)
        ]
        shares = [one.idle / (one.idle + one.busy) for one in found]
        report[f"{name}, {what}"] = {"idle_share": sorted(round(one, 4) for one in shares), "steps": found[0].steps}
    return report


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--device-ms", type=float, help="have a step take so long on a device, and say how long it idles"
    )
    parser.add_argument("--jobs", type=int, default=40, help="of the first workload, for --device-ms")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    server = PostgresServer(options={})  # before jax has threads, because it starts a process
    device = None if options.device_ms is None else OwnDevice(options.device_ms / 1_000)
    engine = made_up_engine(device)
    if device is None:
        report = times(engine, server, options.repeats)
    else:
        report = idling(engine, server, device, options.jobs, options.repeats)
    server.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
