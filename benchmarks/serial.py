"""Items per second of the serial algorithm: ``python -m benchmarks.serial``.

The weights are random: a product takes as long whatever the numbers are. FLOPs counted are the necessary ones: 2 for
each weight and token of every whole sequence, 4 x head_dim for each visible pair and query head, and the rows of the
head; no padding.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time

import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.machine import bf16_gflops
from benchmarks.shapes import SHAPES
from model.config import DecoderConfig
from model.decoder import Decoder
from model.engine import Engine
from model.executables import Executables
from scoring.layout import ChunkWork, GroupWork, Head, Rows
from scoring.model_card import ModelCard
from settings.engine import EngineSettings


def necessary_flop(config: DecoderConfig, lengths: list[int]) -> float:
    """What whole sequences of these lengths cost at least, padding aside."""
    per_layer = config.width * config.head_dim * 2 * (config.query_heads + config.kv_heads)
    weights = config.layers * (per_layer + 3 * config.width * config.mlp_width)
    pairs = sum(length * (length + 1) / 2 for length in lengths)
    attention = 4 * pairs * config.query_heads * config.head_dim * config.layers
    return 2 * weights * sum(lengths) + attention + 2 * len(lengths) * config.width * config.vocabulary


def main() -> None:
    """Measure, and print a line a run and one JSON object at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="demonstration")
    parser.add_argument("--query", type=int, default=300, help="tokens of the query")
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--item-tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    config = SHAPES[options.shape]
    decoder = Decoder(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    card = ModelCard("benchmark", config.context, config.vocabulary, "")
    engine = Engine(Executables(decoder), config, EngineSettings(), card, "")
    random = np.random.default_rng(0)
    prefix = random.integers(0, config.vocabulary, options.query, np.int32)
    items = [random.integers(0, config.vocabulary, options.item_tokens, np.int32) for _ in range(options.items)]
    rows = Rows.pack(items, [options.query] * options.items)
    work = [GroupWork("benchmark", prefix, (ChunkWork(0, rows, (1, 2), Head.LOGPROBS),))]

    rate = bf16_gflops()
    flop = necessary_flop(config, rows.sequence_lengths.tolist())
    seconds = []
    for repeat in range(options.repeats + 1):
        started = time.perf_counter()
        list(engine.score(work, lambda: None))
        seconds.append(time.perf_counter() - started)
        print(f"run {repeat}{' (compiles)' if repeat == 0 else ''}: {seconds[-1]:.2f} s", file=sys.stderr)
    median = statistics.median(seconds[1:])
    print(
        json.dumps(
            {
                "workload": f"{options.shape} {options.query} x ({options.items} of {options.item_tokens})",
                "algorithm": "serial",
                "bf16_gflops": round(rate, 1),
                "items_per_s": round(options.items / median, 3),
                "necessary_tflop": round(flop / 1e12, 4),
                "share_of_rate": round(flop / median / 1e9 / rate, 3),
                "peak_memory_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
