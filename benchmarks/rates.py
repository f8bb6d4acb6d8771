"""How fast this machine runs the parts of a step: ``python -m benchmarks.rates [--write]``.

The planner's estimates are operations divided by these rates (:mod:`scoring.planning.estimates`), which are stored in
``scoring/planning/rates``, one file for each platform. With ``--write``, the file of this platform is written. Weights
are random, because time does not depend on the numbers. Each figure is a median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from benchmarks.machine import bf16_gflops
from benchmarks.packed import ranges_of
from benchmarks.shapes import SHAPES
from model.architecture.config import DecoderConfig
from model.architecture.decoder import Decoder
from model.attention.contract import Attention
from model.attention.dense import DenseAttention
from model.attention.tiles import TiledAttention
from model.buckets import Buckets
from model.checks.known_answer import ModelChecks
from model.executable_table import ExecutableTable
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.embed import EmbedKey
from model.layerwise.output_mlp import OutputMLPKey
from model.layerwise.prefix_attention import PrefixAttentionKey
from model.layerwise.qkv import QKVKey
from model.platforms import Platform
from model.programs.label_head import HeadKey
from scoring.layout import Head
from scoring.planning.estimates import MEASURED
from settings.engine import EngineSettings

PREFIX = 2_048
PACKED = 2_048
PACKED_QUERY = 1_000
LARGER = (1_024, 4_096)
"""Tokens of packed sequences, which are larger than steps."""


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call, after one that does not count."""
    jax.block_until_ready(run())
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(run())
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


class Layer:
    """One layer of a model with random weights, and its programs."""

    def __init__(self, config: DecoderConfig, repeats: int, platform: Platform) -> None:
        settings = EngineSettings()
        step_tokens = platform.step_tokens(settings.step_tokens)
        self.config = replace(config, layers=1)
        self.repeats = repeats
        self.buckets = Buckets.of(step_tokens, one_size=not platform.has_row_floor(step_tokens))
        self.dtype = platform.serving_dtype(settings.dtype)
        decoder = Decoder(self.config, dtype=self.dtype, rngs=nnx.Rngs(0), tied_as_rows=platform.tied_as_rows)
        self.attention = TiledAttention()
        self.blocks = PREFIX // self.buckets.step_tokens
        self.decoder = LayerwiseDecoder(decoder, platform, self.buckets, self.blocks)
        self.run = ExecutableTable(self.decoder, platform, ModelChecks(self.decoder, platform).check)

    def linear(self, size: int) -> float:
        """Return the GFLOP/s of a layer without attention, for ``size`` tokens."""
        return self.config.size.linear_flop * size / self.linear_seconds(size) / 1e9

    def linear_seconds(self, size: int) -> float:
        """Return the seconds of a layer without attention, for ``size`` tokens."""
        tokens = np.zeros(size, np.int32)
        hidden, *rotary = self.run[EmbedKey(size)](*self.decoder.embedding, tokens, tokens)
        attended = [jnp.zeros(part.shape, part.dtype) for part in self.decoder.attended(size)]
        weights = self.decoder.layers[0]
        qkv, output_mlp = self.run[QKVKey(size)], self.run[OutputMLPKey(size)]
        return seconds(lambda: (qkv(*weights, hidden, *rotary), output_mlp(*weights, hidden, *attended)), self.repeats)

    def prefix(self) -> float:
        """Return the GFLOP/s of a full step's attention to a prefix."""
        step = self.buckets.step_tokens
        attend_prefix = self.run[PrefixAttentionKey(step, self.blocks)]
        pool = [jnp.zeros(part.shape, part.dtype) for part in self.decoder.pool(self.blocks)]
        table, ends = np.arange(self.blocks, dtype=np.int32), np.full(step, PREFIX, np.int32)
        queries = self._heads(step)[0]
        taken = seconds(lambda: attend_prefix(queries, *pool, table, ends), self.repeats)
        return self.config.size.pair_flop * step * PREFIX / taken / 1e9

    def packed(self, attention: Attention, *, dense: bool) -> float:
        """Return the GFLOP/s of a packed sequence's attention, for the pairs of all computed tiles."""
        ranges = ranges_of(PACKED, PACKED_QUERY)
        arrays = [array[None] for array in self._heads(PACKED)]
        attend = jax.jit(attention.attend).lower(*arrays, ranges).compile()
        pairs = self.buckets.shapes.packed_pairs(PACKED_QUERY, PACKED, dense=dense)
        return self.config.size.pair_flop * pairs / seconds(lambda: attend(*arrays, ranges), self.repeats) / 1e9

    def head(self) -> float:
        """Return the GFLOP/s of a head program with log-probabilities."""
        key = HeadKey.of(Head.LOGPROBS, 2)
        hidden = np.zeros((key.rows, self.config.width), np.float32)
        labels = np.zeros(key.labels, np.int32)
        taken = seconds(lambda: self.run[key](*self.decoder.head, hidden, labels), self.repeats)
        return self.config.size.head_flop * key.rows / taken / 1e9

    def _heads(self, tokens: int) -> list[Array]:
        """Return random queries, keys and values."""
        counts = (self.config.query_heads, self.config.kv_heads, self.config.kv_heads)
        return [
            jax.random.normal(jax.random.key(n), (tokens, count, self.config.head_dim), self.dtype)
            for n, count in enumerate(counts)
        ]


def measure(config: DecoderConfig, repeats: int, platform: Platform) -> dict[str, object]:
    """Measure all fields of :class:`scoring.planning.estimates.Rates`."""
    layer = Layer(config, repeats, platform)
    small = Layer(SHAPES["demonstration"], repeats, platform)
    return {
        "linear_gflops": {str(size): round(layer.linear(size), 1) for size in (*layer.buckets.step_sizes, *LARGER)},
        "prefix_gflops": round(layer.prefix(), 1),
        "segment_gflops": round(layer.packed(layer.attention, dense=False), 1),
        "dense_gflops": round(layer.packed(DenseAttention(), dense=True), 1),
        "head_gflops": round(layer.head(), 1),
        # So small a model computes next to nothing, so this is the time of the calls.
        "layer_seconds": round(small.linear_seconds(layer.buckets.step_sizes[0]), 6),
    }


def main() -> None:
    """Measure, print, and write the file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="keep the figures as this platform's")
    options = parser.parse_args()
    platform = Platform.of(jax.devices()[0])
    found = {
        "command": f"python -m benchmarks.rates --shape {options.shape}",
        "device": f"{platform}, {os.cpu_count()} cores",
        "jax": version("jax"),
        "bf16_gflops": round(bf16_gflops(), 1),
        **measure(SHAPES[options.shape], options.repeats, platform),
    }
    text = json.dumps(found, indent=2)
    print(text)
    if options.write:
        MEASURED.mkdir(exist_ok=True)
        (MEASURED / f"{platform.name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
