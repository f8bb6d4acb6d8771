"""The program in which the tokens of items attend to their own item."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.random import Generator

from model.attention.contract import AttentionOutput, causal, merge
from model.buckets import SHORTEST_LENGTH_BUCKET
from model.checks import numpy_decoder
from model.checks.cases import attended, evenly_spaced, normal, random_key_values, random_queries
from model.checks.expected import Case, ExpectedOutput
from model.checks.numpy_decoder import ReferenceAttention
from model.forward import Extension
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.steps import Step
from model.programs.kind import ProgramKey, Source, int32


@dataclass(frozen=True, slots=True)
class SelfAttentionKey(ProgramKey[LayerwiseDecoder]):
    """Attention of items to their own tokens."""

    length: int  # tokens that each item is padded to
    rows: int  # items
    last: bool  # queries of each item's last token alone

    def source(self, decoder: LayerwiseDecoder) -> Source:
        step, rows = decoder.buckets.step_tokens, int32(self.rows)
        places = int32(self.rows, self.length)
        arguments = decoder.queries(step), *decoder.key_values(step), *decoder.attended(step), places
        reach = () if decoder.config.window is None else (int32(),)
        if self.last:
            return Source(partial(self_attention_for_logits, decoder), (*arguments, rows, rows, *reach))
        return Source(partial(self_attention, decoder, self.length), (*arguments, int32(step), *reach))

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        """Items of all lengths of a bucket, tightly packed, some of them behind a prefix that they have attended to.

        Some tokens, or the first logit position, belong to another bucket: their output must not change.
        """
        buckets, others = decoder.buckets, 1
        size = buckets.step_tokens
        shorter = self.length // 2 if self.length > SHORTEST_LENGTH_BUCKET else 0
        lengths = random.integers(shorter, self.length, size) + 1
        lengths[0] = self.length
        count = min(self.rows, buckets.logit_rows - others, int((np.cumsum(lengths) <= size).sum()))
        lengths = lengths[:count]
        step = Step.of([Extension(np.zeros(length, np.int32), 0) for length in lengths], buckets)
        (batch,) = step.self_attention
        queries = random_queries(random, decoder, buckets.padded_rows(size))
        keys, values = random_key_values(random, decoder, size)
        values[np.cumsum(lengths) - 1] *= 8  # so that an item's last token shows, however long the item is
        before = ReferenceAttention(normal(random, *queries.shape), normal(random, *queries.shape[:2]))
        before.out[1::3], before.log_sum_exp[1::3] = 0.0, -np.inf
        item_of = np.repeat(np.arange(count), lengths)
        slots, logit_indices = batch.slots.copy(), np.minimum(batch.logit_indices + others, size).astype(np.int32)
        slots[3::7] = -1
        checked = evenly_spaced(others + count if self.last else len(item_of))
        # With ``last``, row ``others + n`` holds the query of item n's last token, which sees the whole item.
        item_of_query = checked - others if self.last else item_of[checked]
        ends = np.full_like(checked, len(item_of)) if self.last else checked + 1
        visible = np.equal.outer(item_of_query, item_of) & np.greater.outer(ends, np.arange(len(item_of)))
        reach = self.length if decoder.config.window is None else self.length // 2 + 1
        stops = np.cumsum(lengths)[np.clip(item_of_query, 0, count - 1)] if self.last else ends
        visible &= np.less_equal.outer(stops - reach, np.arange(len(item_of)))
        own = attended(decoder, queries[checked], keys[: len(item_of)], values[: len(item_of)], visible)
        merged = numpy_decoder.merge(ReferenceAttention(before.out[checked], before.log_sum_exp[checked]), own)
        in_bucket = item_of_query >= 0 if self.last else slots[checked] >= 0
        out = np.where(in_bucket[:, None, None], merged.out, before.out[checked])
        log_sum_exp = np.where(in_bucket[:, None], merged.log_sum_exp, before.log_sum_exp[checked])
        expected = ExpectedOutput(out, checked), ExpectedOutput(log_sum_exp, checked, min_scale=1.0)
        indices = (batch.lengths, logit_indices) if self.last else (slots,)
        if decoder.config.window is not None:
            indices = (*indices, np.int32(reach))
        return (queries, keys, values, *before, batch.places, *indices), expected


def self_attention(decoder: LayerwiseDecoder, length: int, *arguments: Array) -> AttentionOutput:
    """(queries, keys, values, out, log-sum-exp, places [R, L], slots [I]) -> attention output, [I, H, D] and [I, H].

    The program merges each token's attention to its own item into its attention to the prefix, ``out`` and its
    log-sum-exp, which tokens of other length buckets keep. places and slots: see
    :class:`model.layerwise.steps.SelfAttentionBatch`. With a sliding window, how many tokens each sees at most comes
    last, int32 [].
    """
    queries, keys, values, out, log_sum_exp, places, slots, *reach = arguments
    padded = decoder.attention.attend(queries[places], keys[places], values[places], causal(length, *reach))
    own = (part.reshape(-1, *part.shape[2:])[jnp.maximum(slots, 0)] for part in padded)
    merged, is_own = merge(AttentionOutput(out, log_sum_exp), AttentionOutput(*own)), (slots >= 0)[:, None]
    return AttentionOutput(
        jnp.where(is_own[..., None], merged.out, out), jnp.where(is_own, merged.log_sum_exp, log_sum_exp)
    )


def self_attention_for_logits(decoder: LayerwiseDecoder, *arguments: Array) -> AttentionOutput:
    """(queries, keys, values, out, log-sum-exp, places, lengths, logit indices) -> attention output.

    The same for the query of each item's last token alone: the query and the output of item ``r`` stand at
    ``logit_indices[r]``. Outputs elsewhere stay, and an index of I writes nothing.
    """
    queries, keys, values, out, log_sum_exp, places, lengths, logit_indices, *reach = arguments
    begins = jnp.maximum(lengths - reach[0], 0) if reach else jnp.zeros_like(lengths)
    ranges = jnp.stack([begins, lengths], axis=-1)[:, None, None]
    present = jnp.minimum(logit_indices, len(queries) - 1)
    padded = decoder.attention.attend(queries[present][:, None], keys[places], values[places], ranges)
    own = AttentionOutput(*(part[:, 0] for part in padded))
    merged = merge(AttentionOutput(out[present], log_sum_exp[present]), own)
    before = out, log_sum_exp
    return AttentionOutput(
        *(part.at[logit_indices].set(own, mode="drop") for part, own in zip(before, merged, strict=True))
    )
