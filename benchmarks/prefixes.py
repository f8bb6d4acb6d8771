"""The time that the prefix cache saves, and its memory: ``python -m benchmarks.prefixes``.

First, chunks of one query are scored in a call of the engine each: the first prefills; the second, and one of another
job, find the prefix in the cache. Then many queries are scored in rotation, in two chunks at every turn, with a cache
that has room for fewer of them, so that only second chunks hit. This part shows the process's memory when the cache is
full and in the end, and whether the scores have the same bits as without a cache.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.algorithms import random_engine
from benchmarks.shapes import SHAPES
from benchmarks.timing import alone, peak_memory_gb
from model.architecture.config import DecoderConfig
from scoring.layout import ChunkWork, GroupWork, Head, Rows, TokenIds
from settings.engine import EngineSettings
from tools.tpu.workloads import labels_of

if TYPE_CHECKING:
    from model.engine import Engine

ITEMS, ITEM = 10, 20
"""Items of a chunk, and tokens of an item."""
CHUNKS = 2
"""Chunks of a query at every turn."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the engine."""

    seconds: float
    prefills: int  # made in this call
    cached_tokens: int  # that did not have to be computed


@dataclass(frozen=True, slots=True)
class Rotated:
    """The outcome of queries in rotation. Counts are of all turns."""

    seconds: float  # of the last turn, which compiles nothing unless it is the only one
    prefills: int
    hits: int
    evictions: int
    full_gb: float  # peak memory when the cache has become full
    peak_gb: float  # peak memory in the end
    scores: np.ndarray  # float32 [calls, 2 (logits, log-probabilities), items, labels]


def draw(random: np.random.Generator, config: DecoderConfig, length: int) -> TokenIds:
    """Return random ids, int32 [length]."""
    return random.integers(0, config.vocabulary, length, np.int32)


def call(engine: Engine, query: TokenIds, seed: int) -> tuple[Call, np.ndarray]:
    """Score a chunk of random items. Returns the call's figures and its scores."""
    random, vocabulary = np.random.default_rng(seed), engine.card.vocabulary
    rows = Rows.pack([random.integers(0, vocabulary, ITEM, np.int32) for _ in range(ITEMS)], [len(query)] * ITEMS)
    chunk = ChunkWork(0, rows, labels_of(vocabulary), Head.LOGPROBS)
    before, started = engine.prefix_cache.counts()["prefills"], time.perf_counter()
    (scored,) = engine.score([GroupWork("tenant", query, (chunk,))], lambda: None)
    seconds = time.perf_counter() - started
    assert scored.scores.logprobs is not None
    scores = np.stack([scored.scores.logits, scored.scores.logprobs])
    prefills = engine.prefix_cache.counts()["prefills"] - before
    return Call(round(seconds, 4), prefills, scored.cached_tokens), scores


def repeated(shape: str, query: int) -> dict[str, Call]:
    """Score a query's chunks one after another, after another query that compiles the programs."""
    engine, random = random_engine(shape, EngineSettings(), "prefill_extend"), np.random.default_rng(0)
    another, prefix = (draw(random, SHAPES[shape], query) for _ in range(2))
    call(engine, another, seed=0)
    names = ("first chunk", "second chunk", "chunk of a second job")
    return {name: call(engine, prefix, seed)[0] for seed, name in enumerate(names)}


def rotate(shape: str, query: int, queries: int, room: int, turns: int, *, cached: bool) -> Rotated:
    """Score queries in rotation, ``turns`` times each, with a cache that has room for ``room`` of them."""
    config = SHAPES[shape]
    room_bytes = room * cached_bytes(config, query)
    settings = EngineSettings(dtype="bfloat16", enable_scoring_cache=cached, prefix_cache_bytes=room_bytes)
    engine = random_engine(shape, settings, "prefill_extend")
    random = np.random.default_rng(1)
    prefixes = [draw(random, config, query) for _ in range(queries)]
    scores, full = [], 0.0
    for turn in range(turns):
        started = time.perf_counter()
        for n, prefix in enumerate(prefixes):
            scores += [call(engine, prefix, (turn * queries + n) * CHUNKS + chunk)[1] for chunk in range(CHUNKS)]
            if (turn, n) == (0, room - 1):
                full = peak_memory_gb()
    seconds, counts = time.perf_counter() - started, engine.prefix_cache.counts()
    prefills, hits, evictions = (counts[name] for name in ("prefills", "hits", "evictions"))
    return Rotated(round(seconds, 2), prefills, hits, evictions, full, peak_memory_gb(), np.stack(scores))


def cached_bytes(config: DecoderConfig, query: int) -> int:
    """Return the bytes of a query's bf16 keys and values, in whole blocks, and of the states behind these."""
    block = 256  # tokens, on a CPU
    key_values = 2 * config.attention_layers * config.kv_heads * config.head_dim * 2 * block
    return -(-query // block) * (key_values + config.state_bytes)


def main() -> None:
    """Measure, and print lines to read and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--query", type=int, default=2_000, help="tokens of the query whose chunks are timed")
    parser.add_argument("--rotating-query", type=int, default=300, help="tokens of each query in rotation")
    parser.add_argument("--queries", type=int, default=50, help="in rotation")
    parser.add_argument("--room", type=int, default=10, help="for so many of them")
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    if options.query + ITEM > SHAPES[options.shape].context:
        parser.error(f"{options.shape} takes {SHAPES[options.shape].context} tokens: give a shorter --query")

    calls = alone(repeated, options.shape, options.query)
    for name, one in calls.items():
        print(f"{name}: {one.seconds:.3f} s, {one.prefills} prefills, {one.cached_tokens} tokens cached")
    sizes = (options.shape, options.rotating_query, options.queries, options.room, options.turns)
    kept, plain = alone(rotate, *sizes, cached=True), alone(rotate, *sizes, cached=False)
    same = kept.scores.tobytes() == plain.scores.tobytes()
    for name, found in {"cached": kept, "not cached": plain}.items():
        print(
            f"{options.queries} queries in rotation, {name}: {found.seconds} s a turn; {found.prefills} prefills, "
            f"{found.hits} hits, {found.evictions} evictions; peak memory {found.full_gb:.3f} GB after "
            f"{options.room} queries, {found.peak_gb:.3f} GB in the end"
        )
    print(f"scores are {'' if same else 'NOT '}equal bit for bit")
    rotation = {
        "queries": options.queries,
        "room": options.room,
        "cached": described(kept),
        "not_cached": described(plain),
        "equal_bit_for_bit": same,
    }
    print(
        json.dumps(
            {
                "shape": options.shape,
                "query": options.query,
                "calls": {name: asdict(one) for name, one in calls.items()},
                "rotation": rotation,
            }
        )
    )


def described(found: Rotated) -> dict[str, float]:
    """Return the figures for the JSON object."""
    return {
        "seconds": found.seconds,
        "prefills": found.prefills,
        "hits": found.hits,
        "evictions": found.evictions,
        "full_gb": round(found.full_gb, 3),
        "peak_gb": round(found.peak_gb, 3),
    }


if __name__ == "__main__":
    main()
