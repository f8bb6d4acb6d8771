"""The programs that a worker on a target would compile, without weights and without the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx

from model.attention.tiles import TiledAttention
from model.buckets import Buckets, Key, PrefixAttentionKey, SelfAttentionKey, StoreKey
from model.compiling.cost import Frequencies
from model.config import DecoderConfig
from model.decoder import Decoder
from model.executables import Executables
from model.platforms import Platform
from model.pool import PoolShape
from model.programs import Programs
from settings.engine import EngineSettings

NOMINAL_PREFIX = 2_000
"""Tokens of the prefix for which a program is estimated by itself."""


@dataclass(frozen=True, slots=True)
class Program:
    """A function that is compiled ahead of time."""

    name: str
    function: Callable[..., Any]
    arguments: Sequence[Any]  # trees of shapes
    donated: tuple[int, ...]  # numbers of arguments
    frequencies: Frequencies  # for the program's own estimate


class ServedModel:
    """A model as a worker would serve it: its programs by key, and what it holds in memory."""

    def __init__(self, config: DecoderConfig, settings: EngineSettings, platform: Platform) -> None:
        step_tokens = platform.step_tokens(settings.step_tokens)
        dtype = platform.serving_dtype(settings.dtype)
        decoder = without_weights(config, dtype, platform)
        self._buckets = Buckets.of(
            step_tokens,
            one_size=not platform.has_row_floor(step_tokens),
            first=settings.multi_item_warmup_chunk_sizes,
            max_rows=settings.multi_item_extend_batch_size,
            packed=settings.multi_item_precompile_buckets,
            max_packed_tokens=settings.max_multi_item_seq_len,
            block_tokens=platform.block_tokens(step_tokens),
        )
        pool = PoolShape.of(
            config,
            config.context,
            np.dtype(decoder.head_kernel().dtype).itemsize,
            self._buckets.block_tokens,
            settings.prefix_cache_bytes,
        )
        self._blocks = pool.blocks
        self._programs = Programs(decoder, platform, self._buckets, put=lambda array: array)
        self._executables = Executables(
            self._programs, platform, self._buckets, pool.longest, lambda key, executable: None
        )
        parts = self._programs.pool(self._blocks)
        self.arrays: Mapping[str, tuple[int, ...]] = {
            "pool": parts[0].shape,
            "embedding": decoder.model.embed_tokens.weight[...].shape,
            "head": decoder.head_kernel().shape,
        }
        self.resident_bytes = _bytes(nnx.state(decoder)) + config.layers * _bytes(parts)

    def warm_up(self) -> tuple[Key, ...]:
        """Return the keys of the programs that are compiled before serving."""
        return self._buckets.core(self._blocks)

    def program(self, key: Key) -> Program:
        """Return a program by its key."""
        function, arguments = self._executables._program(key)
        donated = (0, 1) if isinstance(key, StoreKey) else ()
        return Program(str(key), function, arguments, donated, self._frequencies(key))

    def _frequencies(self, key: Key) -> Frequencies:
        """Return how often the loop over tiles of keys turns, whose place depends on the number of query tiles."""
        turns = 0.0
        if isinstance(key, PrefixAttentionKey):
            turns = -(-NOMINAL_PREFIX // self._buckets.step_tokens)
        elif isinstance(key, SelfAttentionKey):
            turns = (-(-key.length // TiledAttention().key_block) + 1) / 2  # a tile of queries sees those before it
        return {"while": turns, "while/body/while": turns} if turns else {}


def without_weights(config: DecoderConfig, dtype: str, platform: Platform) -> Decoder:
    """Return a decoder whose weights take no memory: all numbers of an array are the same one."""
    shapes = nnx.eval_shape(lambda: Decoder(config, dtype=dtype, rngs=nnx.Rngs(0), tied_as_rows=platform.tied_as_rows))
    graph, state = nnx.split(shapes)
    empty = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), state)
    decoder: Decoder = nnx.merge(graph, empty)
    return decoder


def _bytes(tree: Any) -> int:
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
