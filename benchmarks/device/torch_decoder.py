"""A decoder in PyTorch, in the two ways that PyTorch has to share a query: its keys and values in a cache, with SDPA,
and in one packed sequence, with FlexAttention. Both are compiled.

torch is imported in the process that measures, since the service does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.workloads import batches
from model.architecture.config import NO_MULTIPLIERS, DecoderConfig
from model.architecture.families import Norms, QKNorm
from model.architecture.weights import tensor_shapes
from model.packed_sequence import pack_sequences
from model.rows import item_rows
from model.score_buffer import ScoreBuffer
from scoring.layout import ChunkWork, Head, Rows
from tools.tpu.workloads import Sequences, labels_of

CACHED_ITEMS = 64
"""Items of a batch, each with a copy of the query's keys and values: 34 MB a layer of a Qwen3-0.6B at 2,000 tokens."""
PACKED_TOKENS = 8_192
"""Tokens of a packed sequence."""
PACKED_ITEMS = 512
"""Items of a packed sequence, at most."""
MULTIPLE = 128
"""Lengths of packed sequences are multiples of FlexAttention's blocks."""

Attend = Callable[[int, Any, Any, Any], Any]
"""Takes the number of a layer and its queries, keys and values [B, heads, L, D]; returns the output."""


class TorchDecoder:
    """A Qwen3 or Llama without biases, with random weights unless they are given by HuggingFace's names."""

    def __init__(
        self,
        config: DecoderConfig,
        device: str,
        dtype: str,
        weights: dict[str, Any] | None = None,
        *,
        compiled: bool = True,
    ) -> None:
        import torch

        if config.traits.norms is not Norms.BEFORE or config.multipliers != NO_MULTIPLIERS or config.window is not None:
            raise ValueError(f"the decoder in PyTorch does not compute {config.family}")
        self._torch, self._config, self._device = torch, config, device
        self._dtype = getattr(torch, dtype)
        given = weights or {}
        self._weights = {
            name: (given[name] if given else self._random(*sizes)).to(device, self._dtype)
            for name, sizes in tensor_shapes(config).items()
        }
        self._labels = torch.tensor(labels_of(config.vocabulary), device=device)
        ways: tuple[Callable[..., Any], ...] = (self._prefix, self._items, self._packed)
        self._run_prefix, self._run_items, self._run_packed = (
            torch.compile(way, dynamic=False) if compiled else way for way in ways
        )

    def cached(self, groups: Sequence[Sequences]) -> np.ndarray:
        """Score with each query computed once, and its keys and values copied for each item of a batch."""
        with self._torch.inference_mode():
            return np.concatenate([self._behind(group) for group in groups])

    def packed(self, groups: Sequence[Sequences]) -> np.ndarray:
        """Score queries and items in packed sequences."""
        with self._torch.inference_mode():
            return np.concatenate([self._in_sequences(group) for group in groups])

    def _behind(self, group: Sequences) -> np.ndarray:
        torch = self._torch
        last, cache = self._run_prefix(self._ids(group.query)[None])
        scores = np.empty((len(group.items), len(self._labels)), np.float32)
        lengths = [len(item) for item in group.items]
        empty = [n for n, length in enumerate(lengths) if not length]
        scores[empty] = self._read(last).cpu().numpy()
        longest = max(lengths)
        for batch in batches(lengths, CACHED_ITEMS, CACHED_ITEMS * longest):
            ids, ends = np.zeros((CACHED_ITEMS, longest), np.int32), np.zeros(CACHED_ITEMS, np.int64)
            for row, n in enumerate(batch):
                ids[row, : lengths[n]], ends[row] = group.items[n], lengths[n] - 1
            found = self._run_items(self._ids(ids), torch.tensor(ends, device=self._device), cache)
            scores[batch] = found[: len(batch)].cpu().numpy()
        return scores

    def _in_sequences(self, group: Sequences) -> np.ndarray:
        from torch.nn.attention.flex_attention import create_block_mask

        rows = Rows.pack(group.items, [len(group.query)] * len(group.items))
        buffer = ScoreBuffer.of(ChunkWork(0, rows, (1,), Head.LOGITS))
        items = item_rows(buffer)
        scores = np.empty((len(items), len(self._labels)), np.float32)
        for sequence in pack_sequences([(group.query, items)], PACKED_TOKENS, PACKED_ITEMS):
            size = -(-sequence.length // MULTIPLE) * MULTIPLE
            tokens, positions, ranges, read = (self._ids(part) for part in sequence.arrays(size, PACKED_ITEMS))
            ranges[sequence.length :, 0, 1] = 1  # softmax over nothing would be NaN

            mask = create_block_mask(_seen(ranges), None, None, size, size, device=self._device)
            found = self._run_packed(tokens[None], positions, read, mask)[: len(sequence.rows)].cpu().numpy()
            scores[[int(row.places[0]) for row in sequence.rows]] = found
        return scores

    def _prefix(self, ids: Any) -> tuple[Any, list[tuple[Any, Any]]]:
        torch, cache = self._torch, list[tuple[Any, Any]]()

        def attend(number: int, queries: Any, keys: Any, values: Any) -> Any:
            cache.append((keys, values))
            attention = torch.nn.functional.scaled_dot_product_attention
            return attention(queries, keys, values, is_causal=True, enable_gqa=True)

        hidden = self._through(ids, torch.arange(ids.shape[1], device=self._device), attend)
        return hidden[:, -1], cache

    def _items(self, ids: Any, ends: Any, cache: list[tuple[Any, Any]]) -> Any:
        torch, prefix, length = self._torch, cache[0][0].shape[2], ids.shape[1]
        own = torch.arange(length, device=self._device)
        seen = torch.cat(
            [torch.ones(length, prefix, device=self._device, dtype=torch.bool), own[:, None] >= own], dim=1
        )

        def attend(number: int, queries: Any, *new: Any) -> Any:
            both = [
                torch.cat([old.expand(len(ids), -1, -1, -1), part], dim=2)
                for old, part in zip(cache[number], new, strict=True)
            ]
            attention = torch.nn.functional.scaled_dot_product_attention
            return attention(queries, both[0], both[1], attn_mask=seen, enable_gqa=True)

        hidden = self._through(ids, own + prefix, attend)
        return self._read(hidden[torch.arange(len(ids), device=self._device), ends])

    def _packed(self, ids: Any, positions: Any, read: Any, mask: Any) -> Any:
        from torch.nn.attention.flex_attention import flex_attention

        def attend(number: int, queries: Any, keys: Any, values: Any) -> Any:
            return flex_attention(queries, keys, values, block_mask=mask, enable_gqa=True)

        return self._read(self._through(ids, positions, attend)[0, read])

    def _through(self, ids: Any, positions: Any, attend: Attend) -> Any:
        linear, config = self._torch.nn.functional.linear, self._config
        frequencies = self._torch.tensor(config.rope.frequencies(config.head_dim), device=self._device).float()
        angles = positions[:, None].float() * frequencies
        cos, sin = angles.cos() * config.rope.magnitude, angles.sin() * config.rope.magnitude
        hidden = self._weights["model.embed_tokens.weight"][ids]
        for number in range(config.layers):

            def weight(name: str, number: int = number) -> Any:
                return self._weights[f"model.layers.{number}.{name}.weight"]

            def heads(name: str, normed: Any, weight: Callable[[str], Any] = weight) -> Any:
                found = linear(normed, weight(f"self_attn.{name}_proj")).unflatten(-1, (-1, config.head_dim))
                if name == "v":
                    return found.transpose(1, 2)
                if config.traits.qk_norm is QKNorm.HEAD:
                    found = self._norm(found, weight(f"self_attn.{name}_norm"))
                first, second = found.float().transpose(1, 2).chunk(2, dim=-1)
                rotated = [first * cos - second * sin, second * cos + first * sin]
                return self._torch.cat(rotated, dim=-1).to(self._dtype)

            normed = self._norm(hidden, weight("input_layernorm"))
            attended = attend(number, heads("q", normed), heads("k", normed), heads("v", normed))
            hidden = hidden + linear(attended.transpose(1, 2).flatten(-2), weight("self_attn.o_proj"))
            normed = self._norm(hidden, weight("post_attention_layernorm"))
            gate = self._torch.nn.functional.silu(linear(normed, weight("mlp.gate_proj")))
            hidden = hidden + linear(gate * linear(normed, weight("mlp.up_proj")), weight("mlp.down_proj"))
        return hidden

    def _read(self, hidden: Any) -> Any:
        """Return the labels' log-probabilities for states [n, width]."""
        normed = self._norm(hidden, self._weights["model.norm.weight"])
        name = "model.embed_tokens.weight" if self._config.tied else "lm_head.weight"
        logits = self._torch.nn.functional.linear(normed, self._weights[name])
        return logits.float().log_softmax(-1)[:, self._labels]

    def _norm(self, values: Any, weight: Any) -> Any:
        return self._torch.nn.functional.rms_norm(values, weight.shape, weight, self._config.norm_epsilon)

    def _random(self, *sizes: int) -> Any:
        return self._torch.randn(sizes, device=self._device) * 0.02

    def _ids(self, numbers: np.ndarray) -> Any:
        return self._torch.tensor(numbers, device=self._device).long()


def _seen(ranges: Any) -> Callable[[Any, Any, Any, Any], Any]:
    """Return whether a query sees a key, as FlexAttention asks it; ranges: [T, 2, 2]."""
    first, end, own_first, own_end = (part.contiguous() for part in ranges.flatten(1).unbind(1))

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        own = (own_first[query] <= key) & (key < own_end[query])
        return ((first[query] <= key) & (key < end[query])) | own

    return seen
