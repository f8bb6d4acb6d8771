"""A check of the attention to long prefixes, which the known prompts are too short for.

Errors of a kernel that visits many keys, a bit of a mask or a block that is visited twice, change a result by a
thousandth, because a row weighs all keys alike. So each row here looks for one key in each head, a needle, which has
nearly all of the weight if the row sees it, and none otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from jax.typing import ArrayLike
from numpy.random import Generator

from model.attention.contract import StepPrefixes
from model.checks.expected import Case, ExpectedOutput
from model.checks.numpy_decoder import capped
from model.chips.axes import WHOLE
from model.chips.shares import Shares
from model.programs.kind import ProgramKey, Source, array, int32
from model.whole_steps.decoder import StackedDecoder

KEYS = 2_048 + 37
"""Tokens of the prefixes of most tiles, at most: several visits of a kernel, and an odd end."""

LONGEST_BYTES = 128 << 20
"""Bytes of the last tile's prefix, at most. If they suffice, it is as long as the longest sequence that is served."""

NEEDLE = 16.0
"""The score of a needle, or the cap of scores if that is higher, before it is capped. Those of others are far lower."""

PREFIXES = 2
"""Prefixes of the tiles before the last, in turn."""


@dataclass(frozen=True, slots=True)
class PrefixAttentionKey(ProgramKey[StackedDecoder]):
    """Attention of a step to prefixes, in one layer and without weights. It is compiled to be checked."""

    windowed: bool = False  # whether rows see the nearest tokens alone

    def source(self, decoder: StackedDecoder) -> Source:
        def attend(queries: Array, keys: Array, values: Array, table: Array, counts: Array, *rows: Array) -> Any:
            prefixes = StepPrefixes(decoder.shape.block_tokens, table, counts, *rows)
            return tuple(decoder.attention.prefix(prefixes)(queries, keys, values, jnp.int32(0)))

        shape, blocks = decoder.shape, [-(-length // decoder.shape.block_tokens) for length in _lengths(decoder)]
        heads, key_heads, head_dim = _sizes(decoder)
        pool = 1, key_heads, sum(blocks), shape.block_tokens, decoder.attention.pool_head_dim(head_dim)
        arguments = (
            array(decoder.dtype, shape.tokens, heads, head_dim),
            *(array(decoder.dtype, *pool),) * 2,
            int32(shape.tiles, max(blocks)),
            int32(shape.tiles),
            *(int32(shape.tokens),) * (2 if self.windowed else 1),
        )
        return decoder.source(attend, arguments, (), (WHOLE, WHOLE))

    def known_answer(self, decoder: StackedDecoder, random: Generator) -> Case:
        """Prefixes in blocks that are out of order, of which each row sees another part."""
        shape, lengths, size = decoder.shape, _lengths(decoder), decoder.shape.block_tokens
        heads, key_heads, head_dim = _sizes(decoder)
        keys, values = (
            [
                random.standard_normal((length, key_heads, head_dim), np.float32).astype(decoder.dtype)
                for length in lengths
            ]
            for _ in range(2)
        )
        of_tile = np.append(np.arange(shape.tiles - 1) % PREFIXES, PREFIXES)
        of_row = np.repeat(of_tile, shape.tile_rows)
        ends = np.empty(shape.tokens, np.int32)
        queries = np.empty((shape.tokens, heads, head_dim), decoder.dtype)
        for prefix, length in enumerate(lengths):
            rows = np.flatnonzero(of_row == prefix)
            ends[rows] = _ends(length, size, len(rows), random)
            needles = _needles(ends[rows], length, key_heads, random)
            score = max(NEEDLE, decoder.config.caps.scores or 0.0) / np.sqrt(head_dim)
            looked_for = keys[prefix][needles, np.arange(key_heads)].astype(np.float32) * score
            queries[rows] = np.repeat(looked_for, heads // key_heads, axis=1).astype(decoder.dtype)
        begins = np.maximum(ends - (decoder.config.reach if self.windowed else max(lengths)), 0).astype(np.int32)
        table = _table([-(-length // size) for length in lengths], random)
        pool = [_in_blocks(parts, table, decoder) for parts in (keys, values)]
        counts = -(-ends.reshape(shape.tiles, -1).max(axis=1) // size)
        arguments: tuple[ArrayLike, ...] = (
            queries,
            *pool,
            table[of_tile],
            counts.astype(np.int32),
            *((ends, begins) if self.windowed else (ends,)),
        )
        expected = _attended(queries, keys, values, of_row, begins, ends, decoder.config.caps.scores)
        return arguments, tuple(map(ExpectedOutput, expected))


def _ends(length: int, block: int, rows: int, random: Generator) -> npt.NDArray[np.int32]:
    """Return how many keys each row sees: all, about as many as some blocks have, or any number."""
    edges = np.arange(0, length + 1, block)[:, None] + np.array([-1, 0, 1])
    ends = np.concatenate([[length], random.permutation(edges.reshape(-1)), random.integers(1, length + 1, rows)])
    return random.permutation(ends[:rows]).clip(1, length).astype(np.int32)


def _needles(ends: npt.NDArray[np.int32], length: int, heads: int, random: Generator) -> npt.NDArray[np.intp]:
    """Return which key each row looks for in each key head, [T, K].

    It is the first one that the row does not see in one head, the last one that it sees in the next, and any in others.
    """
    needles = random.integers(0, length, (len(ends), heads))
    head = (np.arange(len(ends)) + np.arange(2)[:, None]) % heads
    rows = np.arange(len(ends))
    needles[rows, head[1]] = ends - 1
    is_first = rows % 2 if heads == 1 else np.ones_like(rows)
    needles[rows, head[0]] = np.where(is_first, np.minimum(ends, length - 1), needles[rows, head[0]])
    return needles


def _attended(
    queries: Any,
    keys: Sequence[Any],
    values: Sequence[Any],
    prefix_of: npt.NDArray[np.intp],
    begins: npt.NDArray[np.int32],
    ends: npt.NDArray[np.int32],
    cap: float | None,
) -> tuple[Any, Any]:
    """Return attention of rows [T, H, D] to what they see of prefixes [S, K, D], and the log-sum-exp of scores.

    cap: of scores.
    """
    group = queries.shape[1] // keys[0].shape[1]
    out, log_sum_exp = np.empty(queries.shape, np.float32), np.empty(queries.shape[:2], np.float32)
    for prefix in np.unique(prefix_of).tolist():
        rows, places = np.flatnonzero(prefix_of == prefix), np.arange(len(keys[prefix]))
        unseen = (places < begins[rows, None]) | (places >= ends[rows, None])
        for head in range(queries.shape[1]):
            own_keys, own_values = (part[prefix][:, head // group].astype(np.float32) for part in (keys, values))
            scores = queries[rows, head].astype(np.float32) @ own_keys.T / np.float32(np.sqrt(queries.shape[2]))
            scores = capped(scores, cap)
            scores[unseen] = -np.inf
            peak = scores.max(axis=1, keepdims=True)
            weights = np.exp(scores - peak)
            total = weights.sum(axis=1, keepdims=True)
            out[rows, head] = weights / total @ own_values
            log_sum_exp[rows, head] = (peak + np.log(total))[:, 0]
    return out, log_sum_exp


def _table(blocks: Sequence[int], random: Generator) -> npt.NDArray[np.int32]:
    """Return which blocks each prefix has, out of order, [n, most blocks]. Behind its own come those of another."""
    order = random.permutation(sum(blocks)).astype(np.int32)
    begins = np.cumsum([0, *blocks[:-1]])
    return np.stack([np.roll(order, -begin)[: max(blocks)] for begin in begins])


def _in_blocks(parts: Sequence[Any], table: npt.NDArray[np.int32], decoder: StackedDecoder) -> Any:
    """Return keys or values of prefixes, [S, K, D] each, in the blocks of a pool of one layer."""
    size, (_, key_heads, head_dim) = decoder.shape.block_tokens, parts[0].shape
    blocks = sum(-(-len(part) // size) for part in parts)
    pool = np.zeros((key_heads, blocks, size, decoder.attention.pool_head_dim(head_dim)), decoder.dtype)
    for part, of_prefix in zip(parts, table.tolist(), strict=True):
        for block, begin in zip(of_prefix, range(0, len(part), size), strict=False):
            tokens = part[begin : begin + size]
            pool[:, block, : len(tokens), :head_dim] = tokens.swapaxes(0, 1)
    return pool[None]


def _lengths(decoder: StackedDecoder) -> list[int]:
    """Return the tokens of each prefix, of which the last one is as long as the model serves, if that fits."""
    size, (_, key_heads, head_dim) = decoder.shape.block_tokens, _sizes(decoder)
    token_bytes = 2 * key_heads * decoder.attention.pool_head_dim(head_dim) * decoder.dtype.itemsize
    served = decoder.shape.longest * size
    return [*(min(KEYS, served),) * PREFIXES, min(max(KEYS, LONGEST_BYTES // token_bytes), served)]


def _sizes(decoder: StackedDecoder) -> tuple[int, int, int]:
    """Return the query heads, key heads and numbers of a head that a chip has."""
    config = decoder.config if decoder.chips is None else Shares.of(decoder.config, decoder.chips.count).own
    return config.query_heads, config.kv_heads, config.head_dim
