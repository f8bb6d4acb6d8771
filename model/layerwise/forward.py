"""The forward pass layer by layer: calls the programs of a step over the weights and the pool of prefix blocks."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from model.adapted_decoders import AdaptedDecoders
from model.forward import Extension
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.embed import EmbedKey
from model.layerwise.output_mlp import OutputMLPKey
from model.layerwise.packed_attention import PackedAttentionKey
from model.layerwise.prefix_attention import PrefixAttentionKey
from model.layerwise.qkv import QKVKey
from model.layerwise.recurrent_layers import RecurrentLayers
from model.layerwise.self_attention import SelfAttentionKey
from model.layerwise.steps import Step, filled, tokens_read
from model.layerwise.store import StoreKey
from model.layerwise.warm_up import Key, core, rest
from model.packed_sequence import PackedSequence
from model.platforms import Platform
from model.prefixes.pool import untouched_zeros
from model.programs.heads import Heads
from model.states import Computed
from scoring.layout import TokenIds


class LayerwiseForward:
    """A :class:`model.forward.Forward` that takes a step through the layers, a few programs each."""

    prefixes = 1

    def __init__(self, decoders: AdaptedDecoders[LayerwiseDecoder], platform: Platform, blocks: int) -> None:
        self.decoders = decoders
        decoder, executables = decoders.base
        self._decoder = decoder
        buckets = self._buckets = decoder.buckets
        self.shapes = buckets.shapes
        self.block_tokens, self.grain = buckets.block_tokens, buckets.grain
        self._executables = executables
        self.heads = Heads(decoder, lambda key: executables[key])
        self._blocks = blocks  # of the pool
        self._pool = [
            tuple(untouched_zeros(part, on_host=platform.name == "cpu") for part in decoder.pool(blocks))
            for _ in decoder.layers
        ]
        self._recurrent: RecurrentLayers | None = None
        if decoder.config.recurrence is not None:
            self._recurrent = RecurrentLayers(executables, blocks, on_host=platform.name == "cpu")
        kinds = decoder.config.recurrent
        self._order = [(is_recurrent, kinds[:place].count(is_recurrent)) for place, is_recurrent in enumerate(kinds)]
        """Of each layer, whether it is recurrent, and its number among those of its kind."""
        heads = (buckets.step_tokens, decoder.config.query_heads)
        self._no_attention = (
            jnp.zeros((*heads, decoder.config.head_dim), jnp.float32),
            jnp.full(heads, -jnp.inf, jnp.float32),
        )

        self._windowed = decoder.config.windowed
        self._reaches: tuple[tuple[Any, ...], tuple[Any, ...]] = (), ()
        """What programs of self-attention take in layers without and with a sliding window."""
        if decoder.config.window is not None:
            self._reaches = (jnp.int32(decoder.config.context),), (jnp.int32(decoder.config.reach),)

    def core(self) -> tuple[Key, ...]:
        return core(self._buckets, self._blocks, has_states=self.has_states)

    def rest(self, *, packed: bool, dense: bool) -> tuple[Key, ...]:
        kinds = {"has_states": self.has_states, "has_classes": bool(self._decoder.config.classes)}
        return rest(self._buckets, self._blocks, packed=packed, dense=dense, **kinds)

    @property
    def has_states(self) -> bool:
        return self._recurrent is not None

    def compile(self, key: Hashable) -> None:
        self._executables[cast("Key", key)]

    def clean(self) -> None:
        """Do nothing: whoever takes a block writes all of it."""

    def fill(self, extensions: Sequence[Extension]) -> Iterator[tuple[Extension, ...]]:
        return filled(extensions, self._buckets)

    def run(self, extensions: Sequence[Extension]) -> Computed:
        """Compute the extensions of a step, which continue one prefix. One that is stored is alone in its step."""
        recurrence = self._decoder.config.recurrence
        step = Step.of(extensions, self._buckets, 0 if recurrence is None else recurrence.inputs)
        read = tokens_read(extensions) if extensions[0].read > 1 else None
        return Computed(self._run(step, extensions[0]), len(step.tokens), read)

    def _run(self, step: Step, first: Extension) -> Array:
        # Transferred once here, and not with each of some hundred calls. The table changes when its blocks do.
        host_begins, batches = self._begins(step), () if step.in_pool else step.self_attention
        blocks, prefix_ends, begins, place, indices = jax.device_put(
            (
                first.table.copy(),
                step.prefix_ends,
                host_begins,
                _place(first, self.block_tokens) if len(first.stored) else None,
                [(batch.places, batch.slots, batch.lengths, batch.logit_indices) for batch in batches],
            )
        )
        size, logit_rows = len(step.tokens), self._buckets.logit_rows
        run, weights = self._executables, self.decoders[first.adapter]
        adapted, layers = weights.executables, weights.decoder.layers
        qkv, output_mlp = adapted[QKVKey(size)], adapted[OutputMLPKey(size)]
        self_attention = [
            (run[SelfAttentionKey(batch.bucket.length, batch.bucket.rows, last=False)], places, slots)
            for batch, (places, slots, _, _) in zip(batches, indices, strict=True)
        ]
        attend_prefix = run[PrefixAttentionKey(size, self._blocks)] if step.has_prefix else None
        hidden, *angles = run[EmbedKey(size)](*self._decoder.embedding, step.tokens, step.positions)
        reaches = self._reaches
        # Where extensions are read at several tokens, the last layer computes all tokens, as any other layer does.
        complete = self._order if first.read > 1 else self._order[:-1]
        recurrent = None if self._recurrent is None else self._recurrent.of_step(step, first, weights)
        for (is_recurrent, number), is_windowed in zip(complete, self._windowed, strict=False):
            if is_recurrent and self._recurrent is not None and recurrent is not None:
                hidden = self._recurrent.through(number, hidden, recurrent)
                continue
            layer = layers[number]
            queries, keys, values = qkv(*layer, hidden, *_of_kind(angles, is_windowed))
            self._store(number, keys, values, place)
            found = self._no_attention
            if attend_prefix is not None:
                found = attend_prefix(queries, *self._pool[number], blocks, prefix_ends, *begins[is_windowed])
            for attend_items, places, slots in self_attention:
                found = attend_items(queries, keys, values, *found, places, slots, *reaches[is_windowed])
            (hidden,) = output_mlp(*layer, hidden, *found)
        if first.read > 1:
            return hidden  # type: ignore[no-any-return]
        last, layer, is_windowed = len(layers) - 1, layers[-1], self._windowed[-1]
        qkv_for_logits = adapted[QKVKey(size, logit_rows)]
        rotary = _of_kind(angles, is_windowed)
        queries, keys, values, hidden = qkv_for_logits(*layer, hidden, *rotary, step.logit_positions)
        self._store(last, keys, values, place)
        if not first.read:
            return hidden  # type: ignore[no-any-return]
        found = self._no_attention
        if attend_prefix is not None:
            attend_prefix = run[PrefixAttentionKey(logit_rows, self._blocks)]
            seen = [part[step.logit_positions] for part in (step.prefix_ends, *host_begins[is_windowed])]
            found = attend_prefix(queries, *self._pool[last], blocks, *seen)
        for batch, (places, _, lengths, logit_indices) in zip(batches, indices, strict=True):
            attend_items = run[SelfAttentionKey(batch.bucket.length, batch.bucket.rows, last=True)]
            items = places, lengths, logit_indices, *reaches[is_windowed]
            found = attend_items(queries, keys, values, *found, *items)
        (hidden,) = adapted[OutputMLPKey(logit_rows)](*layer, hidden, *found)
        return hidden  # type: ignore[no-any-return]

    def packed(self, sequence: PackedSequence, *, dense: bool, adapter: str | None = None) -> Computed:
        size, logit_rows = self._buckets.packed_shape(sequence.length, len(sequence.rows))
        tokens, positions, *ranges, logit_positions = sequence.arrays(size, logit_rows, self._decoder.config.window)
        run, weights = self._executables, self.decoders[adapter]
        adapted, layers = weights.executables, weights.decoder.layers
        qkv, output_mlp = adapted[QKVKey(size)], adapted[OutputMLPKey(size)]
        attend = run[PackedAttentionKey(size, 0, dense)]
        hidden, *angles = run[EmbedKey(size)](*self._decoder.embedding, tokens, positions)
        for layer, is_windowed in zip(layers[:-1], self._windowed, strict=False):
            queries, keys, values = qkv(*layer, hidden, *_of_kind(angles, is_windowed))
            found = attend(queries, keys, values, ranges[is_windowed])
            (hidden,) = output_mlp(*layer, hidden, *found)
        layer, is_windowed = layers[-1], self._windowed[-1]
        rotary, seen = _of_kind(angles, is_windowed), ranges[is_windowed][logit_positions]
        queries, keys, values, hidden = adapted[QKVKey(size, logit_rows)](*layer, hidden, *rotary, logit_positions)
        found = run[PackedAttentionKey(size, logit_rows, dense)](queries, keys, values, seen)
        (hidden,) = adapted[OutputMLPKey(logit_rows)](*layer, hidden, *found)
        return Computed(hidden, size)

    def _begins(self, step: Step) -> tuple[tuple[TokenIds, ...], tuple[TokenIds, ...]]:
        """Return what attention to a prefix takes in layers without and with a sliding window."""
        if self._decoder.config.window is None:
            return (), ()
        begins = np.maximum(step.positions + 1 - self._decoder.config.reach, 0)
        return (np.zeros_like(begins),), (begins,)

    def _store(self, layer: int, keys: Array, values: Array, place: Array | None) -> None:
        if place is not None:
            self._pool[layer] = self._executables[StoreKey(self._blocks)](*self._pool[layer], keys, values, place)


def _place(piece: Extension, block_tokens: int) -> TokenIds:
    """Return where a piece is stored: see :func:`model.layerwise.store.store`."""
    (target,) = piece.stored
    return np.array([target, target if piece.source is None else piece.source, piece.start % block_tokens], np.int32)


def _of_kind(angles: Sequence[Array], is_windowed: bool) -> Sequence[Array]:
    """Return the cosines and sines of a layer. Those of layers with a sliding window come last, where they differ."""
    return angles[-2:] if is_windowed else angles[:2]
