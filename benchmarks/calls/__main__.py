"""What a call of ``/v1/score`` costs, beside what people would build instead: ``python -m benchmarks.calls``.

Every system scores the same texts with the demonstration model, by the same engine. It starts with empty servers of its
own on this machine, is measured alone, and ends. wrk calls it from a number of clients, each of which calls again as
soon as it has its answer, after a warm-up that does not count.

``ours_postgres``: ``scoreline api`` and ``scoreline worker`` with PostgreSQL, whose commits are on the disk, and Redis;
``ours_embedded``: ``scoreline up``; ``ours_..._percore``: the same with a process of the API for each core;
``ours_postgres_N_processes``: the same with N of them, for each N of ``--processes``;
``ours_instant``, ``ours_instant_N_processes``: as ``ours_postgres``, but every score is zero and takes no time, so that
the API, the database or the bell is full first; only if it is asked for;
``celery``: FastAPI and a Celery task for each call, with results in Redis: nothing is stored or batched;
``bare``: FastAPI with the engine in its process, behind a lock.

For each number of clients, and of items in a call if it is not 1 (``64x10``), the last line, a JSON object, has: calls
per second, the median and the 99th percentile of their durations, and the milliseconds of processor time per call that
the API, the worker, PostgreSQL, Redis, wrk, and other processes took, each with their children. With SQLite, the time
of the database is in that of the API and the worker. With ten items, ``share_of_engine`` compares the items per second
with what the engine scores of the same items in one batch, when nothing else runs. Answers other than 200 are named,
as are scores that differ between systems, and the exit status is then 1. wrk counts a call that took more
than twice the mean once more for each call that its client would have sent meanwhile, which lifts the percentiles.
Figures are medians over the rounds; everything else is on standard error. It takes Linux, wrk, PostgreSQL and Redis.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from benchmarks.calls import systems
from benchmarks.calls.load import Level, MissingWrkError, find_wrk, send_calls, texts
from benchmarks.timing import alone
from tests.services import MissingBinaryError

System = Callable[[], AbstractContextManager[systems.Running]]


def _processes(count: int) -> tuple[str, str]:
    return "--processes", str(count)


SYSTEMS: dict[str, System] = {
    "ours_postgres": systems.ours_on_postgres,
    "ours_postgres_percore": lambda: systems.ours_on_postgres(*_processes(systems.CORES)),
    "ours_embedded": systems.ours_embedded,
    "ours_embedded_percore": lambda: systems.ours_embedded(*_processes(systems.CORES)),
    "celery": systems.celery,
    "bare": systems.bare,
}
INSTANT = "ours_instant"
SERVICES: dict[str, Callable[..., AbstractContextManager[systems.Running]]] = {
    "ours_postgres": systems.ours_on_postgres,
    INSTANT: partial(systems.ours_on_postgres, instant=True),
}
"""The systems that ``--processes`` multiplies."""
PERCORE = {"ours_postgres_percore": "api", "ours_embedded_percore": "up"}
"""The systems that need the option ``--processes`` of a command."""

ROLES = ("api", "worker", "database", "redis", "other")
NUMBERS_OF_A_LEVEL = 10_000_000
"""Items of a level have numbers from this times the level's place; those of its warm-up begin with half of it more."""

SYNCS = 50

Figures = dict[str, float]


def main() -> int:
    """Measure, and print one JSON object as the last line."""
    options = _options()
    # Each of these raises an error, so that all processes are ended on its way out.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        find_wrk()
        return _measure(options)
    except (MissingWrkError, MissingBinaryError, systems.StartError) as error:
        say(str(error))
        return 2


def _measure(options: argparse.Namespace) -> int:
    levels = [Level(clients, items) for items in options.items for clients in options.clients]
    machine = _machine()
    say(f"machine: {machine}")
    engine = _engine_rates(levels)
    chosen = _chosen(options.systems, options.processes)
    names = [name for name in chosen if _can_run(name)]
    found: dict[str, dict[Level, list[Figures]]] = {name: defaultdict(list) for name in names}
    scores = []
    for number, name in itertools.product(range(options.rounds), names):
        say(f"round {number + 1}, {name}")
        with chosen[name]() as running:
            if not name.startswith(INSTANT):
                scores.append(running.scores)
            for place, level in enumerate(levels):
                figures = _figures(running, place, level, options)
                if level in engine:
                    figures["share_of_engine"] = figures["per_s"] * level.items / engine[level]
                found[name][level].append(figures)
                say(f"  {level!s:>6}: " + ", ".join(f"{what} {value:.5g}" for what, value in figures.items()))
    problems = [
        f"NOT ALL CALLS WERE ANSWERED WITH 200: {name}, {level}: {sum(one['not_200'] for one in rounds):.0f} were not"
        for name in names
        for level, rounds in found[name].items()
        if any(one["not_200"] for one in rounds)
    ]
    if any(others != scores[0] for others in scores[1:]):
        problems.append(f"THE SYSTEMS DO NOT GIVE THE SAME SCORES: {scores}")
    for line in problems:
        say(line)
    report = {
        "calls": {name: {str(level): _medians(rounds) for level, rounds in found[name].items()} for name in names},
        "machine": machine,
    }
    if engine:
        report["engine_items_per_s"] = {str(level): round(rate, 1) for level, rate in engine.items()}
    print(json.dumps(report))
    return int(bool(problems))


def _chosen(wanted: Sequence[str], processes: Sequence[int]) -> dict[str, System]:
    """Return the systems to measure by their names, in their order."""
    known = {**SYSTEMS, INSTANT: SERVICES[INSTANT]}
    found: dict[str, System] = {}
    for name in wanted:
        found[name] = known[name]
        if name in SERVICES:
            for count in processes:
                found[f"{name}_{count}_processes"] = partial(SERVICES[name], *_processes(count))
    return found


def _engine_rates(levels: Sequence[Level]) -> dict[Level, float]:
    """Return, for each level with several items in a call, the items per second of the engine alone.

    It scores the items of as many calls as there are clients.
    """
    rates = {}
    for place, level in enumerate(levels):
        if level.items > 1:
            first = place * NUMBERS_OF_A_LEVEL
            calls = [texts(first + client * level.items, level.items) for client in range(level.clients)]
            rates[level] = alone(systems.engine_alone, calls).items_per_s
            say(f"engine alone, {level}: {rates[level]:.1f} items/s")
    return rates


def _figures(running: systems.Running, place: int, level: Level, options: argparse.Namespace) -> Figures:
    """Measure a system at one level, after a warm-up."""
    first = place * NUMBERS_OF_A_LEVEL
    send_calls(running.url, running.key, level, options.warm_up, first + NUMBERS_OF_A_LEVEL // 2)
    before = running.cpu_seconds()
    answered = send_calls(running.url, running.key, level, options.seconds, first)
    after = running.cpu_seconds()
    cpu_seconds = {role: after.get(role, 0.0) - before.get(role, 0.0) for role in ROLES}
    cpu_seconds["load"] = answered.cpu_seconds
    return {
        "per_s": answered.calls / answered.seconds,
        "median_ms": answered.median_ms,
        "p99_ms": answered.p99_ms,
        **{f"{role}_cpu_ms": 1e3 * seconds / max(1, answered.calls) for role, seconds in cpu_seconds.items()},
        "not_200": answered.not_200,
    }


def _medians(rounds: Sequence[Figures]) -> Figures:
    return {what: round(statistics.median(one[what] for one in rounds), 3) for what in rounds[0]}


def _can_run(name: str) -> bool:
    command = PERCORE.get(name)
    if command is None or systems.has_processes_option(command):
        return True
    say(f"{name} is left out: `scoreline {command}` has no option --processes")
    return False


def _machine() -> dict[str, object]:
    """Return what the figures depend on besides the code."""
    from benchmarks.engine import measure_rate

    load_average = os.getloadavg()[0]
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processors = [line.partition(": ")[2] for line in lines if "model name" in line]
    return {
        "cores": systems.CORES,
        "processor": processors[0] if processors else platform.machine(),
        "bf16_gflops": round(alone(measure_rate), 1),
        "sync_ms": round(_sync_ms(), 3),
        "load_average": round(load_average, 2),
    }


def _sync_ms() -> float:
    """Return the median time until 8 KiB are on the disk where the databases are."""
    seconds = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(SYNCS):
            started = time.perf_counter()
            file.write(bytes(8192))
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - started)
    return 1e3 * statistics.median(seconds)


def say(line: str) -> None:
    """Print a line on standard error."""
    print(line, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=[*SYSTEMS, INSTANT], default=list(SYSTEMS))
    parser.add_argument(
        "--processes", nargs="+", type=int, default=[], metavar="N", help="also with N processes of the API"
    )
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--items", nargs="+", type=int, default=[1], help="of a call")
    parser.add_argument("--full", action="store_true", help="--clients 1 8 64 256 --items 1 10")
    parser.add_argument("--seconds", type=int, default=10, help="of each measurement")
    parser.add_argument("--warm-up", type=int, default=3, help="seconds before each measurement")
    parser.add_argument("--rounds", type=int, default=1, help="of all systems in turn")
    options = parser.parse_args()
    if options.full:
        options.clients, options.items = [1, 8, 64, 256], [1, 10]
    return options


if __name__ == "__main__":
    sys.exit(main())
