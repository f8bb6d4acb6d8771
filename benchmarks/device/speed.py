"""How fast the device is: products, compiling, first requests, all workloads, all algorithms; and its memory."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.algorithms import ALGORITHMS, planned_by, random_engine
from benchmarks.device.findings import Finding
from benchmarks.device.scale import Scale
from benchmarks.engine import described
from benchmarks.shapes import SHAPES
from benchmarks.timing import Measured, peak_memory_gb, timed
from benchmarks.warm_up import request_seconds
from benchmarks.workloads import WORKLOADS
from scoring.layout import ChunkWork, GroupWork, Head, Rows, ScoredChunk
from settings.engine import EngineSettings
from tools.tpu.workloads import Workload, labels_of

if TYPE_CHECKING:
    from model.engine import Engine

WARM_UP_SECONDS = 120
FIRST_REQUEST_SECONDS = 5
TIMES_SERIAL = {"300x100x20": 10, "300x10x20": 5}
"""How many times as fast as serial scoring a workload has to be."""
MEMORY_GB = 0.5
"""Memory that a hundred items may take more than one."""
SERIAL_ITEMS = 20
"""Items of the target workload that are scored serially."""
ACCELERATOR = (8_192, 8_192, 8_192)
"""Sizes of the product whose rate is the measure on an accelerator: smaller ones do not reach what it can do."""


def device(scale: Scale) -> Iterator[Finding]:
    """Find which device there is, and what computes attention on it."""
    import jax

    from model.attention.tiles import TiledAttention
    from model.platforms import Platform

    found = Platform.of(jax.devices()[0])
    dtype = found.serving_dtype("auto")
    attention = found.whole_step_attention(dtype, SHAPES[scale.shape].head_dim) if found.whole_steps else None
    kind = type(attention or TiledAttention()).__name__
    values = {"kind": found.device_kind, "platform": found.name, "served_in": dtype, "attention": kind}
    yield Finding("device", "device", dict(values))


def rate(tiny: bool) -> Iterator[Finding]:
    """Measure the rate of bf16 products that all shares are relative to."""
    import jax

    from benchmarks.machine import COLUMNS, INNER, ROWS, bf16_gflops

    if tiny:
        found = bf16_gflops(1, (64, 64, 64))
    elif jax.devices()[0].platform == "cpu":
        found = bf16_gflops(sizes=(ROWS, INNER, COLUMNS))
    else:
        found = bf16_gflops(sizes=ACCELERATOR, together=10)
    yield Finding("products", "bf16", {"tflops": found / 1e3})


def speed(scale: Scale, gflops: float) -> Iterator[Finding]:
    """Measure one engine: how long it compiles, then its speed by workload and by algorithm."""
    engine = random_engine(scale.shape, EngineSettings(**scale.settings, enable_scoring_cache=False))  # type: ignore[arg-type]
    yield from _warm_up(engine, scale)
    yield from _company(engine, scale)
    yield from _memory(engine, scale)
    config = SHAPES[scale.shape]
    by_name = {}
    for name in WORKLOADS:
        by_name[name] = _timed(engine, scale.workload(name), scale.repeats)
        values = described(by_name[name], scale.workload(name), config, gflops)
        yield Finding("workloads", name, {"ms": by_name[name].seconds * 1e3, **values})
    for name, times in TIMES_SERIAL.items():
        with planned_by(ALGORITHMS["serial"]):
            serial = _timed(engine, scale.workload(name), 1)
        found = serial.seconds / by_name[name].seconds
        # A tiny run is too short for this to say anything.
        passed = {} if scale.tiny else {"passed": found > times}
        yield Finding(
            "gates of speed", f"{name}, times as fast as serially", {"found": found, "allowed": times, **passed}
        )
    for name, options in ALGORITHMS.items():
        whole = scale.workload("target")
        part = whole.first(SERIAL_ITEMS) if name == "serial" else whole
        with planned_by(options):
            measured = _timed(engine, part, scale.repeats)
        values = described(measured, part, config, gflops)
        yield Finding("algorithms, on the target workload", name, {"items": part.items, **values})


def second_process(scale: Scale, expected: str) -> Iterator[Finding]:
    """Score known items by another process, beside strangers. expected: their digest in the first one."""
    engine = random_engine(scale.shape, EngineSettings(**scale.settings))  # type: ignore[arg-type]
    found = digest(engine, scale, strangers=True)
    yield Finding(
        "bits", "another process, beside strangers, in reverse", {"digest": found, "passed": found == expected}
    )


def digest(engine: Engine, scale: Scale, *, strangers: bool) -> str:
    """Return a digest of the bits of known items: alone and in order, or beside strangers and in reverse."""
    config = SHAPES[scale.shape]
    random = np.random.default_rng(1)
    prefix = random.integers(0, config.vocabulary, 70 if scale.tiny else 700, np.int32)
    items = [random.integers(0, config.vocabulary, length, np.int32) for length in (*range(1, 20), 20, 31, 40)]
    labels = labels_of(config.vocabulary)

    def work(key: str, query: np.ndarray, rows: Sequence[np.ndarray], id: int) -> GroupWork:
        packed = Rows.pack(rows, [len(query)] * len(rows))
        return GroupWork(key, query, (ChunkWork(id, packed, labels, Head.LOGPROBS),))

    if not strangers:
        (scored,) = engine.score([work("known", prefix, items, 0)], lambda: None)
        return _digest(scored)
    others = [random.integers(0, config.vocabulary, len(prefix) + n, np.int32) for n in (3, 9)]
    around = [work(f"stranger {n}", other, items[n::3], n) for n, other in enumerate(others, start=1)]
    groups = [around[0], work("known", prefix, items[::-1], 0), around[1]]
    found = {scored.id: scored for scored in engine.score(groups, lambda: None)}
    return _digest(found[0], reverse=True)


def _digest(scored: ScoredChunk, *, reverse: bool = False) -> str:
    parts = [part for part in (scored.scores.logprobs, scored.scores.logits) if part is not None]
    assert parts
    ordered = [np.ascontiguousarray(part[::-1] if reverse else part) for part in parts]
    return hashlib.sha256(b"".join(part.tobytes() for part in ordered)).hexdigest()[:16]


def _company(engine: Engine, scale: Scale) -> Iterator[Finding]:
    alone = digest(engine, scale, strangers=False)
    yield Finding("bits", "alone", {"digest": alone})
    again = digest(engine, scale, strangers=False)
    yield Finding("bits", "once more", {"digest": again, "passed": again == alone})
    beside = digest(engine, scale, strangers=True)
    yield Finding("bits", "beside strangers, in reverse", {"digest": beside, "passed": beside == alone})


def _warm_up(engine: Engine, scale: Scale) -> Iterator[Finding]:
    programs: list[str] = []
    started = time.perf_counter()
    engine.warm_up(lambda done, total, program: programs.append(program))
    seconds = time.perf_counter() - started
    passed = {"allowed": WARM_UP_SECONDS, "passed": seconds < WARM_UP_SECONDS}
    yield Finding("gates of speed", f"warm-up of {len(programs)} programs, s", {"found": seconds, **passed})
    query = 70 if scale.tiny else 500
    requests = request_seconds(engine, scale.shape, query, 5 if scale.tiny else 20, 20, 3 if scale.tiny else 10)
    passed = {"allowed": FIRST_REQUEST_SECONDS, "passed": requests[0] < FIRST_REQUEST_SECONDS}
    yield Finding("gates of speed", "first request, s", {"found": requests[0], **passed})
    yield Finding("gates of speed", "last of the first requests, s", {"found": requests[-1]})


def _memory(engine: Engine, scale: Scale) -> Iterator[Finding]:
    workload = scale.workload("300x100x20")
    taken = []
    for part in (workload.first(1), workload):
        list(engine.score(part.work(SHAPES[scale.shape].vocabulary), lambda: None))
        taken.append(_peak_gb())
    values = {"found": taken[1] - taken[0], "allowed": MEMORY_GB, "passed": taken[1] - taken[0] < MEMORY_GB}
    yield Finding("gates of speed", "memory of a hundred items over one, GB", values)


def _peak_gb() -> float:
    """Return the most memory that arrays have taken on the device, or this process if the device does not say."""
    import jax

    stats = jax.devices()[0].memory_stats()
    return peak_memory_gb() if not stats else stats["peak_bytes_in_use"] / 1e9


def _timed(engine: Engine, workload: Workload, repeats: int) -> Measured:
    work = workload.work(engine.card.vocabulary)

    def run() -> None:
        list(engine.score(work, lambda: None))

    return timed(run, repeats, workload.items, run)
