"""The compiled programs of a step layer by layer, by key."""

from __future__ import annotations

from collections.abc import Callable

import jax

from model.buckets import (
    Buckets,
    EmbedKey,
    HeadKey,
    Key,
    OutputMLPKey,
    PackedAttentionKey,
    PrefixAttentionKey,
    QKVKey,
    SelfAttentionKey,
    StoreKey,
)
from model.executable_table import ExecutableTable, Source, array, float32, int32
from model.layerwise.programs import Programs
from model.platforms import Platform

Check = Callable[[Key, jax.stages.Compiled], None]  # raises an error if a program computes wrong results


class Executables(ExecutableTable[Key]):
    """The programs of :class:`model.layerwise.programs.Programs`.

    max_prefix_blocks: blocks of the longest prefix.
    """

    def __init__(
        self, programs: Programs, platform: Platform, buckets: Buckets, max_prefix_blocks: int, check: Check
    ) -> None:
        super().__init__(platform, check)
        self._programs = programs
        self._buckets = buckets
        self._max_prefix_blocks = max_prefix_blocks
        self._dtype = programs.head[1].dtype

    def source(self, key: Key) -> Source:
        """See :class:`model.executable_table.ExecutableTable`."""
        programs, config, buckets = self._programs, self._programs.config, self._buckets
        query_heads, kv_heads = (config.query_heads, config.head_dim), (config.kv_heads, config.head_dim)
        half = config.head_dim // 2
        layer = programs.layers[0]

        def hidden(tokens: int) -> tuple[jax.ShapeDtypeStruct, ...]:
            return float32(tokens, config.width), float32(tokens, half), float32(tokens, half)

        def attended(tokens: int) -> tuple[jax.ShapeDtypeStruct, ...]:
            rows = buckets.padded_rows(tokens)
            return float32(rows, *query_heads), float32(rows, config.query_heads)

        def queries(tokens: int) -> jax.ShapeDtypeStruct:
            return array(self._dtype, buckets.padded_rows(tokens), *query_heads)

        def key_values(tokens: int) -> tuple[jax.ShapeDtypeStruct, ...]:
            return (array(self._dtype, buckets.padded_rows(tokens), *kv_heads),) * 2

        match key:
            case EmbedKey(tokens):
                return Source(programs.embed, (*programs.embedding, int32(tokens), int32(tokens)))
            case QKVKey(tokens, 0):
                return Source(programs.qkv, (*layer, *hidden(tokens)))
            case QKVKey(tokens, logit_rows):
                return Source(programs.qkv_for_logits, (*layer, *hidden(tokens), int32(logit_rows)))
            case PrefixAttentionKey(tokens, blocks):
                prefix = (*programs.pool(blocks), int32(self._max_prefix_blocks))
                return Source(programs.prefix_attention, (queries(tokens), *prefix, int32(tokens)))
            case SelfAttentionKey(length, rows, last):
                program = programs.self_attention_for_logits(length) if last else programs.self_attention(length)
                step = buckets.step_tokens
                indices = (int32(rows), int32(rows)) if last else (int32(step),)
                return Source(program, (queries(step), *key_values(step), *attended(step), int32(rows), *indices))
            case PackedAttentionKey(tokens, logit_rows, dense):
                rows = logit_rows or tokens
                sequence = (queries(rows), *key_values(tokens), int32(rows, 2, 2))
                return Source(programs.packed_attention(dense=dense), sequence)
            case OutputMLPKey(tokens):
                return Source(programs.output_mlp, (*layer, hidden(tokens)[0], attended(tokens)[0]))
            case StoreKey(blocks):
                stored = (*key_values(buckets.step_tokens), int32(buckets.step_blocks))
                return Source(programs.store, (*programs.pool(blocks), *stored), donated=(0, 1))
            case HeadKey(head, rows, labels):
                return Source(programs.lm_head(head), (*programs.head, float32(rows, config.width), int32(labels)))
