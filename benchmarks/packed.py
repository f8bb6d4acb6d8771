"""The time that skipping tiles saves: ``python -m benchmarks.packed [--out FILE]``.

Measures the attention of one layer over a packed sequence, in bf16, with the heads of a Qwen3-0.6B: the visited tiles,
the seconds of the segment form (which skips invisible tiles) and of the dense form (with an explicit mask), and the
temporary memory of each compiled program. Items have 20 tokens; the query has 300, or is half of the sequence.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.shapes import QWEN3_06B
from model.attention.contract import Attention
from model.attention.dense import DenseAttention
from model.attention.tiles import TiledAttention, active_tiles
from model.packed_sequence import pack_sequences
from model.rows import item_rows
from model.score_buffer import ScoreBuffer
from scoring.layout import ChunkWork, Head, Rows

LENGTHS = (500, 1000, 2000, 4000, 8000)
ITEM = 20


def ranges_of(length: int, query: int) -> np.ndarray:
    """Return the ranges that each token of a packed sequence sees, int32 [1, length, 2, 2]."""
    count = (length - query) // ITEM
    item = np.zeros(ITEM, np.int32)
    rows = Rows.pack([item] * count, [query] * count)
    buffer = ScoreBuffer.of(ChunkWork(0, rows, (1,), Head.LOGITS))
    items = item_rows(buffer)
    (packed,) = pack_sequences([(np.zeros(query, np.int32), items)], length, count)
    return packed.arrays(length, count)[2][None]


def measure(attention: Attention, length: int, ranges: np.ndarray, repeats: int) -> dict[str, float]:
    """Return the median seconds of a call, and the program's temporary memory in MB."""
    config = QWEN3_06B
    keys = [jax.random.key(n) for n in range(3)]
    heads = (config.query_heads, config.kv_heads, config.kv_heads)
    arguments = [
        jax.random.normal(key, (1, length, count, config.head_dim), jnp.bfloat16)
        for key, count in zip(keys, heads, strict=True)
    ]
    run = jax.jit(attention.attend).lower(*arguments, ranges).compile()
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        jax.block_until_ready(run(*arguments, ranges))
        seconds.append(time.perf_counter() - started)
    memory: Any = run.memory_analysis()
    return {
        "seconds": round(statistics.median(seconds[1:]), 4),
        "temporary_mb": round(memory.temp_size_in_bytes / 1e6, 1),
    }


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the JSON object to this file")
    options = parser.parse_args()
    tiled = TiledAttention()
    found = []
    for length in LENGTHS:
        for query in (300, length // 2):
            ranges = ranges_of(length, query)
            blocks = -(-length // tiled.key_block)
            block = -(-length // blocks)
            active = np.asarray(active_tiles(jnp.asarray(ranges), block, block, blocks))
            segment, dense = (
                measure(attention, length, ranges, options.repeats) for attention in (tiled, DenseAttention())
            )
            found.append(
                {
                    "tokens": length,
                    "query": query,
                    "tiles_visited": int(active.sum()),
                    "tiles": active.size,
                    "segment": segment,
                    "dense": dense,
                    "times_faster": round(dense["seconds"] / segment["seconds"], 2),
                }
            )
            print(found[-1], file=sys.stderr)
    text = json.dumps({"layer_of": "qwen3-0.6b", "dtype": "bfloat16", "found": found})
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
