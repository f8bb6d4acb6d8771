"""The attention of whole steps on an NVIDIA GPU: cuDNN's, which jax reaches by an entry that is private to it.

The public function rounds the log-sum-exp to bf16, so results could not be merged. The private one keeps it in float32.
It is called here and nowhere else. If it is not as it was, or cuDNN refuses, attention is plain XLA.

A call computes a batch of tiles of queries, each with keys of its own. How many of the keys a tile sees is an argument;
a tile computes no others. Which of them a row sees is said by a bias: zero, or a number so low that the weight is zero.
So a row's result does not depend on what other rows of its tile see.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import structlog
from jax import Array, lax

from model.attention.contract import (
    AttendExtension,
    AttendPacked,
    AttendPrefix,
    AttentionOutput,
    ItemSlots,
    PlainProducts,
    StepPrefixes,
    WholeStepAttention,
    merge,
    visible,
)
from model.attention.xla import XLAAttention

PREFIX_KEYS = 2_048
"""Keys of a prefix that a call sees, which are copied from the pool for each tile: 134 MB for 16 tiles and 8 key heads
of 128. What follows does not depend on it: the keys of a call begin at the same positions in every step."""
ITEM_ROWS = 128
"""Rows of a tile of slots."""
PACKED_QUERIES = 1_024
"""Queries of a packed sequence that share a call. They see the keys up to the last one that any of them sees."""
PACKED_MULTIPLE = 128
"""Packed sequences are filled up to a multiple of so many tokens."""
UNSEEN = -(2.0**41)
"""The bias of keys that a row does not see: exact in bf16, and finite, as a difference of infinities is no number."""

_PRIVATE = "jax._src.cudnn.fused_attention_stablehlo"

log = structlog.stdlib.get_logger("engine")


class Fused(Protocol):
    """Attention of a batch of tiles in one kernel."""

    def __call__(self, queries: Array, keys: Array, values: Array, lengths: Array, bias: Array) -> tuple[Array, Array]:
        """Return the output, in the dtype of queries, and the log-sum-exp of scores, float32 [B, H, Q].

        queries: [B, H, Q, D]; keys, values: [B, K, S, D]; lengths: int32 [B], how many keys a tile sees, at least one;
        bias: [B, 1, Q, S], added to scores, which are scaled by ``1 / sqrt(D)``. The result of rows all of whose keys
        have the bias :data:`UNSEEN` may be anything.
        """


def by_cudnn(queries: Array, keys: Array, values: Array, lengths: Array, bias: Array) -> tuple[Array, Array]:
    """Call the private entry: see :class:`Fused`."""
    private = importlib.import_module(_PRIVATE)
    out, log_sum_exp = private.dot_product_attention(
        queries,
        keys,
        values,
        bias=bias,
        q_seqlen=jnp.full_like(lengths, queries.shape[2]),
        kv_seqlen=lengths,
        scale=queries.shape[3] ** -0.5,
        mask_type=private.MaskType.PADDING,
        qkv_layout="BNTH",
        return_residual=True,
    )
    return out, log_sum_exp


@dataclass(frozen=True, slots=True)
class CuDNNAttention(PlainProducts):
    """A :class:`model.attention.contract.WholeStepAttention` of bf16 operands.

    The loops turn once where all prefixes fit into a call and no item is longer than a tile of slots.
    """

    fused: Fused = by_cudnn
    prefix_keys: int = PREFIX_KEYS
    item_rows: int = ITEM_ROWS
    packed_queries: int = PACKED_QUERIES

    def prefix(self, prefixes: StepPrefixes) -> AttendPrefix:
        block_tokens, table, counts, ends, _ = prefixes
        assert prefixes.begins is None, "the kernel knows no sliding windows"
        tiles, longest = table.shape
        tile_ends = ends.reshape(tiles, -1)
        blocks = min(longest, max(1, self.prefix_keys // block_tokens))  # that a call sees
        calls = -(-longest // blocks)
        filled_up = jnp.pad(table, ((0, 0), (0, calls * blocks - longest)))

        def of_layer(queries: Array, pool_keys: Array, pool_values: Array, layer: Array) -> AttentionOutput:
            tiled = _tiled(queries, tiles)

            def visit(number: Array | int) -> AttentionOutput:
                some = lax.dynamic_slice_in_dim(filled_up, number * blocks, blocks, axis=1)
                positions = jnp.arange(blocks * block_tokens, dtype=jnp.int32) + number * blocks * block_tokens
                seen = positions < tile_ends[..., None]
                return self._attended(
                    tiled, _gathered(pool_keys, layer, some), _gathered(pool_values, layer, some), seen
                )

            attended = visit(0)
            if calls > 1:
                needed = (jnp.max(counts) + blocks - 1) // blocks
                attended = _merged(attended, needed, visit)
            return _flat(attended)

        return of_layer

    def extension(self, items: ItemSlots, prefixes: StepPrefixes) -> AttendExtension:
        attend_prefix = self.prefix(prefixes)
        slots = len(items.rows)
        rows = min(self.item_rows, slots)
        tiles = jnp.arange(slots // rows, dtype=jnp.int32)
        at = jnp.arange(slots, dtype=jnp.int32).reshape(-1, rows)
        begins = items.begins.reshape(-1, rows)
        # A slot that is longer than a tile takes whole tiles, and a row of it also sees those before its own.
        farthest = jnp.max(jnp.where(begins <= at, tiles[:, None] - begins // rows, 0))

        def of_layer(
            queries: Array, keys: Array, values: Array, pool_keys: Array, pool_values: Array, layer: Array
        ) -> AttentionOutput:
            own_queries, own_keys, own_values = (
                _tiled(part[items.rows], len(tiles)) for part in (queries, keys, values)
            )

            def visit(distance: Array | int) -> AttentionOutput:
                before = tiles - distance
                positions = (before[:, None] * rows + jnp.arange(rows, dtype=jnp.int32))[:, None]
                seen = (begins[..., None] <= positions) & (positions <= at[..., None])
                keys_before, values_before = (part[before % len(tiles)] for part in (own_keys, own_values))
                return self._attended(own_queries, keys_before, values_before, seen)

            attended = visit(0)
            if len(tiles) > 1:
                attended = _merged(attended, farthest + 1, visit)
            own = AttentionOutput(*(jnp.take(part, items.slots, axis=0, mode="clip") for part in _flat(attended)))
            return merge(attend_prefix(queries, pool_keys, pool_values, layer), own)

        return of_layer

    def packed(self, ranges: Array) -> AttendPacked:
        tokens = len(ranges)
        missing = -tokens % PACKED_MULTIPLE
        ranges = jnp.pad(ranges, ((0, missing), (0, 0), (0, 0)))
        positions = jnp.arange(tokens + missing, dtype=jnp.int32)

        def of_layer(queries: Array, keys: Array, values: Array) -> AttentionOutput:
            parts = (jnp.pad(part, ((0, missing), (0, 0), (0, 0))) for part in (queries, keys, values))
            of_queries, of_keys, of_values = (_tiled(part, 1) for part in parts)
            found = []
            for first in range(0, tokens + missing, self.packed_queries):
                some = slice(first, first + self.packed_queries)
                seen = visible(ranges[some], positions)[None]
                found.append(_flat(self._attended(of_queries[:, :, some], of_keys, of_values, seen)))
            return AttentionOutput(*(jnp.concatenate(part)[:tokens] for part in zip(*found, strict=True)))

        return of_layer

    def _attended(self, queries: Array, keys: Array, values: Array, seen: Array) -> AttentionOutput:
        """Return attention of tiles [B, H, Q, D] to the keys [B, K, S, D] that rows see: seen [B, Q, S]."""
        last = jnp.where(seen.any(axis=1), jnp.arange(1, seen.shape[2] + 1, dtype=jnp.int32), 0).max(axis=1)
        bias = jnp.where(seen, 0.0, UNSEEN).astype(queries.dtype)[:, None]
        out, log_sum_exp = self.fused(queries, keys, values, jnp.maximum(last, 1), bias)
        some = seen.any(axis=2)[:, None]
        return AttentionOutput(
            jnp.where(some[..., None], out, jnp.zeros_like(out)), jnp.where(some, log_sum_exp, -jnp.inf)
        )


@functools.cache
def cudnn_or_xla(dtype: jnp.dtype, head_dim: int) -> WholeStepAttention:
    """Return attention by cuDNN, or by plain XLA if cuDNN refuses on this machine, which is logged once."""
    reason = refusal(dtype, head_dim)
    if reason is None:
        return CuDNNAttention()
    log.warning("attention is computed by XLA, which is slower", dtype=dtype.name, head_dim=head_dim, reason=reason)
    return XLAAttention()


def refusal(dtype: jnp.dtype, head_dim: int) -> str | None:
    """Return why cuDNN does not compute attention here, None if it does: a small call is compiled.

    cuDNN refuses dtypes, sizes of heads, older GPUs, and is too old or missing. A jax that has changed the entry
    refuses by any error, or by results of other types.
    """
    queries = jax.ShapeDtypeStruct((2, 4, ITEM_ROWS, head_dim), dtype)  # type: ignore[no-untyped-call]
    keys = jax.ShapeDtypeStruct((2, 2, ITEM_ROWS, head_dim), dtype)  # type: ignore[no-untyped-call]
    lengths = jax.ShapeDtypeStruct((2,), jnp.int32)  # type: ignore[no-untyped-call]
    bias = jax.ShapeDtypeStruct((2, 1, ITEM_ROWS, ITEM_ROWS), dtype)  # type: ignore[no-untyped-call]
    try:
        # A function of its own, because jax would not trace by_cudnn again.
        lowered = jax.jit(lambda *arguments: by_cudnn(*arguments)).lower(queries, keys, keys, lengths, bias)
        found = [(part.shape, part.dtype) for part in lowered.out_info]
        if found != [(queries.shape, queries.dtype), (queries.shape[:3], jnp.float32)]:
            return f"the private entry of jax returns {found}"
        lowered.compile()
    except Exception as error:  # any: what a changed entry raises is not known
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def _merged(attended: AttentionOutput, calls: Array, visit: Callable[[Array], AttentionOutput]) -> AttentionOutput:
    """Merge what the first call has found with what the others find."""
    started = AttentionOutput(attended.out.astype(jnp.float32), attended.log_sum_exp)
    return AttentionOutput(
        *lax.fori_loop(1, calls, lambda number, so_far: merge(AttentionOutput(*so_far), visit(number)), started)
    )


def _tiled(rows: Array, tiles: int) -> Array:
    """Return rows [T, H, D] as tiles [tiles, H, T / tiles, D]."""
    return rows.reshape(tiles, -1, *rows.shape[1:]).swapaxes(1, 2)


def _flat(attended: AttentionOutput) -> AttentionOutput:
    """Return the result for tiles [tiles, H, Q, …] as that of rows [tiles * Q, H, …]."""
    moved = (part.swapaxes(1, 2) for part in attended)
    return AttentionOutput(*(part.reshape(-1, *part.shape[2:]) for part in moved))


def _gathered(pool: Array, layer: Array, blocks: Array) -> Array:
    """Return blocks of a layer of the pool [L, K, B, s, D], side by side for each tile: [tiles, K, n * s, D].

    blocks: int32 [tiles, n].
    """
    heads = jnp.arange(pool.shape[1], dtype=jnp.int32)
    found = pool[layer, heads[:, None], blocks[:, None]]  # [tiles, K, n, s, D]
    return found.reshape(*found.shape[:2], -1, found.shape[-1])
