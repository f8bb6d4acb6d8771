"""The gates of correctness, on small models whose logits are spread, against what HuggingFace said of them.

Its answers are stored (:mod:`tests.model.references`), so neither torch nor a network is needed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.algorithms import ALGORITHMS, planned_by
from benchmarks.device.findings import Finding, Value
from benchmarks.device.scale import Scale
from model.engine import Engine
from scoring.layout import GroupWork
from tests.model import engines, references
from tests.model.checkpoints import EVERY, tensors, write
from tests.model.engines import DType
from tests.model.references.gates import (
    BFLOAT16_LARGEST,
    BFLOAT16_MEAN,
    FLOAT32_LOGPROBS,
    OWN_LARGEST,
    OWN_MEAN,
    label_softmax_difference,
)

LABELS = (3, 17, 41, 80)
LOGPROBS_OF_ALGORITHMS = 2e-5
"""Largest difference of a float32 log-probability between two algorithms, and in other company in a packed sequence."""
SEGMENT_AGAINST_DENSE, EXTEND_AGAINST_PACKED = 1e-6, 1e-5
"""The same for softmax scores of labels."""
ALONE = ("serial", "prefill_extend")
"""Algorithms in which company must not change a bit."""
ITEMS = (1, 2, 8, 20, 31, 57, 40)
"""Tokens of the items whose bits are compared."""
LONGEST_TINY = 40

Scores = np.ndarray


def gates(checkpoint: str, dtype: DType, scale: Scale) -> Iterator[Finding]:
    """Judge one model in one dtype."""
    with tempfile.TemporaryDirectory() as folder:
        directory = write(Path(folder), EVERY[checkpoint], tensors(EVERY[checkpoint], references.SEED))
        settings = {"multi_item_precompile_buckets": (), "max_multi_item_seq_len": 2_048} | scale.settings
        engine = engines.load(directory, dtype, **settings)
        engine.warm_up(lambda done, total, program: None)
        for name, found, allowed in _judged(engine, checkpoint, dtype, scale):
            values: dict[str, Value] = {"found": found, "allowed": allowed, "passed": bool(found <= allowed)}
            yield Finding("gates of correctness", f"{checkpoint}, {dtype}: {name}", values)


def _judged(engine: Engine, checkpoint: str, dtype: DType, scale: Scale) -> Iterator[tuple[str, float, float]]:
    every = references.rows(checkpoint)
    kept = [n for n, row in enumerate(every) if not scale.tiny or len(row) <= LONGEST_TINY]
    rows, reference = [every[n] for n in kept], references.read(checkpoint)
    theirs, own = reference.float32[kept], reference.bfloat16[kept]
    found = {}
    for algorithm, options in ALGORITHMS.items():
        with planned_by(options):
            found[algorithm] = engines.logprobs(engine, rows, lambda length: length // 2)
    for algorithm, ours in found.items():
        if dtype == "float32":
            yield f"{algorithm} against HuggingFace, log-probabilities", _apart(ours, theirs), FLOAT32_LOGPROBS
            continue
        apart, of_own = (label_softmax_difference(one, theirs, LABELS) for one in (ours, own))
        largest, mean = min(BFLOAT16_LARGEST, OWN_LARGEST * of_own.largest), min(BFLOAT16_MEAN, OWN_MEAN * of_own.mean)
        yield f"{algorithm} against HuggingFace, largest difference of a score", apart.largest, largest
        yield f"{algorithm} against HuggingFace, mean difference of scores", apart.mean, mean
    if dtype == "float32":
        yield from _against_one_another(found)
    yield from _isolation(engine, checkpoint, dtype)


def _against_one_another(found: dict[str, Scores]) -> Iterator[tuple[str, float, float]]:
    serial = found["serial"]
    most = max(_apart(ours, serial) for ours in found.values())
    yield "algorithms against serial, log-probabilities", most, LOGPROBS_OF_ALGORITHMS
    segment, dense, extend = (found[name] for name in ("packed_segment", "packed_dense", "prefill_extend"))
    apart = label_softmax_difference(segment, dense, LABELS).largest
    yield "packed without a mask against packed with one, scores", apart, SEGMENT_AGAINST_DENSE
    apart = label_softmax_difference(extend, segment, LABELS).largest
    yield "prefill_extend against packed, scores", apart, EXTEND_AGAINST_PACKED


def _isolation(engine: Engine, checkpoint: str, dtype: DType) -> Iterator[tuple[str, float, float]]:
    """Compare an item's scores when the others change. Of bits, any difference is more than is allowed."""
    random = np.random.RandomState(3)
    vocabulary = EVERY[checkpoint].vocabulary
    prefix, other_prefix = (random.randint(0, vocabulary, length).astype(np.int32) for length in (70, 66))
    items = [random.randint(0, vocabulary, length).astype(np.int32) for length in ITEMS]
    changed = random.randint(0, vocabulary, ITEMS[-1]).astype(np.int32)

    def score(rows: Sequence[np.ndarray], *, beside: bool = False) -> Scores:
        work = [_work("known", prefix, rows, 0)]
        if beside:
            work = [_work("one", other_prefix, items[:3], 1), *work, _work("two", other_prefix[3:], items[2:], 2)]
        return engines.logprobs_of(engines.score(engine, work)[0])

    def largest(one: Scores, other: Scores) -> float:
        """Return how far they are apart; for other bits at least the smallest number."""
        same = np.array_equal(one.view(np.int32), other.view(np.int32))
        return 0.0 if same else max(_apart(one, other), float(np.finfo(np.float32).tiny))

    for algorithm, options in ALGORITHMS.items():
        with planned_by(options):
            engine.prefix_cache.drop("known", prefix)
            first = score(items)
            yield f"{algorithm}: once more, now with the query in the cache", largest(score(items), first), 0.0
            others = score([*items[:-1], changed])
            yield f"{algorithm}: another item has other tokens", largest(others[:-1], first[:-1]), 0.0
            if dtype == "bfloat16" and algorithm not in ALONE:
                continue
            company = [
                largest(score(items[::-1])[::-1], first),
                largest(score(items[2:5]), first[2:5]),
                largest(score([*items, changed[:13]])[:-1], first),
                largest(score([*items[:-1], changed[:5]])[:-1], first[:-1]),
                largest(score(items, beside=True), first),
            ]
            allowed = 0.0 if algorithm in ALONE else LOGPROBS_OF_ALGORITHMS
            yield f"{algorithm}: others reordered, removed, added, shortened, and strangers", max(company), allowed


def _work(key: str, prefix: np.ndarray, rows: Sequence[np.ndarray], id: int) -> GroupWork:
    return GroupWork(key, prefix, (engines.chunk(id, rows, len(prefix), LABELS),))


def _apart(one: Scores, other: Scores) -> float:
    return float(np.abs(one - other).max())
