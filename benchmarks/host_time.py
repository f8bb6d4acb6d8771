"""How many items a second the host keeps up with: ``python -m benchmarks.host_time``.

The engine computes whole steps as on an accelerator, with programs that take no time: they have the arguments of the
real ones, and return zeros. What is left is Python and the calls of programs. Each workload goes through the engine
alone, and as jobs through claims, engine and commits in PostgreSQL. Beside items a second there are items in a second
of the processor time of this process and of PostgreSQL, which other work on the machine changes little. PostgreSQL is
the benchmark's own, with its usual settings. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import structlog
from jax import Array

from benchmarks.calls.processor_time import cpu_seconds, family
from checkpoints.card import ModelCard
from jobs.queue.accept import accept
from jobs.store.database import Database
from jobs.store.migration import migrate
from jobs.store.records import Submission
from model.engine import Engine
from model.executable_table import ExecutableTable
from model.platforms import Platform
from model.whole_steps.decoder import StackedDecoder
from model.whole_steps.forward import Key, WholeStepForward
from scoring.layout import GroupWork, Rows
from scoring.work import chunk_of
from settings.engine import EngineSettings
from settings.scoring import ScoringSettings
from settings.store import StoreSettings
from tests.services import PostgresServer
from tools.tpu.programs import without_weights
from tools.tpu.shapes import QWEN3_06B
from tools.tpu.workloads import Workload, alike, labels_of
from workers.engine_loop.loop import LoopTiming, ScoringLoop
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


class InstantExecutables(ExecutableTable[StackedDecoder]):
    """Programs that take no time: they return zeros, and what they would write into is returned as it is."""

    def _compile(self, key: Key) -> jax.stages.Compiled:
        function, arguments, donated = key.source(self.decoder)
        outputs = jax.eval_shape(function, *arguments)
        zeros = [jnp.zeros(output.shape, output.dtype) for output in outputs[: len(outputs) - len(donated)]]

        def nothing(*given: Array) -> tuple[Array, ...]:
            return jnp.zeros(()), *(given[number] for number in donated)

        # Without the option, arguments that nothing depends on would not be brought to the device.
        executable = jax.jit(nothing, donate_argnums=donated, keep_unused=True).lower(*arguments).compile()

        def instant(*given: Any) -> tuple[Array, ...]:
            _, *kept = executable(*given)
            return *zeros, *kept

        return instant  # type: ignore[return-value]


def instant_engine() -> Engine:
    """Return an engine that computes whole steps, without weights, by programs that take no time."""
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
    forward.executables = InstantExecutables(decoder, platform, check=lambda key, executable: None)
    return engine


@dataclass(frozen=True, slots=True)
class Clocks:
    """What has passed: seconds, and seconds of processor time."""

    wall: float
    worker: float  # processor time of this process
    database: float  # of PostgreSQL

    @classmethod
    def now(cls, server: PostgresServer | None = None) -> Clocks:
        of_server = 0.0 if server is None else cpu_seconds(family([server.process_id]))
        return cls(time.perf_counter(), time.process_time(), of_server)

    def __sub__(self, other: Clocks) -> Clocks:
        return Clocks(self.wall - other.wall, self.worker - other.worker, self.database - other.database)


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
    """A bell that only counts jobs that have ended. ``on_count``: what is called at some counts."""

    def __init__(self, on_count: Mapping[int, Callable[[], None]]) -> None:
        self._ended = 0
        self._on_count = dict(on_count)

    def ring(self, model: str) -> None:
        pass

    def announce(self, job_ids: Sequence[str], results: Mapping[str, str] | None = None) -> None:
        self._ended += len(job_ids)
        for count in [count for count in self._on_count if count <= self._ended]:
            self._on_count.pop(count)()


def submit(database: Database, workload: Workload, number: int, chunk_items: int) -> None:
    """Accept a job of the workload's only group, cut into chunks as the API cuts it, behind a query of its own."""
    (group,) = workload.sequences(CONFIG.vocabulary)
    query = group.query.copy()
    query[:2] = divmod(number, CONFIG.vocabulary)
    parts = [group.items[first : first + chunk_items] for first in range(0, len(group.items), chunk_items)]
    chunks = [chunk_of(chunk_items * n, Rows.pack(part, [len(query)] * len(part))) for n, part in enumerate(parts)]
    accept(
        database,
        Submission(
            model=CARD.name,
            work_key=CARD.work_key,
            prefix=query,
            chunks=chunks,
            label_token_ids=labels_of(CONFIG.vocabulary),
            prompt_tokens=sum(int(chunk.rows.sequence_lengths.sum()) for chunk in chunks),
            total_items=len(group.items),
        ),
    )


def through_the_queue(engine: Engine, server: PostgresServer, workload: Workload, jobs: int, repeat: int) -> Clocks:
    """Work off jobs by a scoring loop, behind a tenth as many, in which it finds out how much it can claim."""
    name = server.create_database(name=f"repeat_{repeat}_of_{workload.items}_items")
    database = Database.open(StoreSettings(database_url=server.url(name)))
    migrate(database)
    before = -(-jobs // 10)
    for number in range(before + jobs):
        submit(database, workload, number, ScoringSettings().chunk_items)
    passed: list[Clocks] = []

    def note() -> None:
        passed.append(Clocks.now(server))

    def end() -> None:
        note()
        loop.stop()

    watchdog = Watchdog(60.0, lambda: None)
    timing = LoopTiming(claim_seconds=4.0, poll_seconds=2.0)
    bell = EndBell({before: note, before + jobs: end})
    loop = ScoringLoop(database, bell, engine, watchdog, timing, worker_id="host time", card=CARD)
    loop.run()
    watchdog.close()
    database.close()
    return passed[1] - passed[0]


def rates(items: int, passed: Clocks) -> dict[str, int]:
    """Return the figures of a run."""
    found = {"items_per_s": items / passed.wall, "items_per_processor_s": items / passed.worker}
    if passed.database:
        found["items_per_processor_s_of_postgresql"] = items / passed.database
    return {name: round(rate) for name, rate in found.items()}


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    server = PostgresServer(options={})  # before jax has threads, because it starts a process
    engine = instant_engine()
    report: dict[str, dict[str, dict[str, int]]] = {}
    for name, (workload, jobs) in WORKLOADS.items():
        through_the_engine(engine, workload, 2, -1)  # compiles the programs
        runs: dict[str, Callable[[int], Clocks]] = {
            "engine": partial(through_the_engine, engine, workload, jobs),
            "queue": partial(through_the_queue, engine, server, workload, jobs),
        }
        report[name] = {}
        for what, run in runs.items():
            found = [rates(jobs * workload.items, run(repeat)) for repeat in range(options.repeats)]
            report[name][what] = max(found, key=lambda rate: rate["items_per_processor_s"])
            print(f"{name}, {what}: {found}", file=sys.stderr)
    server.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
