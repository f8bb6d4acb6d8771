"""When the programs of layers are compiled: their whole set is known before a worker serves."""

from __future__ import annotations

from collections.abc import Iterator

from model.buckets import Buckets, packed_logit_rows
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.embed import EmbedKey
from model.layerwise.output_mlp import OutputMLPKey
from model.layerwise.packed_attention import PackedAttentionKey
from model.layerwise.prefix_attention import PrefixAttentionKey
from model.layerwise.qkv import QKVKey
from model.layerwise.recurrence import RecurrenceKey, RecurrentInputsKey, RecurrentOutputKey
from model.layerwise.self_attention import SelfAttentionKey
from model.layerwise.states import KeepStateKey, TakeStateKey
from model.layerwise.store import StoreKey
from model.programs.gathering import GatherKey
from model.programs.heads import first_heads, rest_of_heads
from model.programs.kind import ProgramKey

Key = ProgramKey[LayerwiseDecoder]


def core(buckets: Buckets, blocks: int, *, has_states: bool = False) -> tuple[Key, ...]:
    """Return what is compiled before serving: enough to score anything that has few labels.

    blocks: of the pool; has_states: whether some layers are recurrent.
    """
    steps = [key for size in buckets.warm_up_sizes for key in _of_step(buckets, size, blocks, has_states)]
    rows = buckets.logit_rows
    last_layer = PrefixAttentionKey(rows, blocks), OutputMLPKey(rows), GatherKey(rows)
    self_attention = (
        SelfAttentionKey(bucket.length, bucket.rows, last)
        for bucket in buckets.length_buckets
        for last in (False, True)
    )
    recurrence = _recurrence(buckets, blocks) if has_states else ()
    return tuple(dict.fromkeys((*steps, *last_layer, StoreKey(blocks), *first_heads(), *self_attention, *recurrence)))


def rest(
    buckets: Buckets, blocks: int, *, packed: bool, dense: bool, has_states: bool = False, has_classes: bool = False
) -> tuple[Key, ...]:
    """Return what is compiled beside the first work: other step sizes, many labels, and packed sequences.

    packed, dense: whether packed sequences may be computed without a mask and with one. has_classes: of the head.
    """
    steps = (key for size in buckets.step_sizes for key in _of_step(buckets, size, blocks, has_states))
    masks = [mask for mask, wanted in ((False, packed), (True, dense)) if wanted]
    sequences = (key for mask in masks for size in buckets.packed_sizes for key in _of_packed(size, mask))
    known = set(core(buckets, blocks, has_states=has_states))
    heads = rest_of_heads(has_classes=has_classes)
    return tuple(key for key in dict.fromkeys((*steps, *heads, *sequences)) if key not in known)


def _of_step(buckets: Buckets, size: int, blocks: int, has_states: bool) -> Iterator[Key]:
    yield from (EmbedKey(size), QKVKey(size), PrefixAttentionKey(size, blocks), OutputMLPKey(size))
    yield from (QKVKey(size, buckets.logit_rows), GatherKey(size))
    if has_states:
        yield from (RecurrentInputsKey(size), RecurrentOutputKey(size))


def _recurrence(buckets: Buckets, blocks: int) -> Iterator[Key]:
    """Yield the programs of recurrent layers that do not depend on a step's size."""
    yield from (TakeStateKey(blocks), KeepStateKey(blocks))
    for bucket in buckets.length_buckets:
        yield RecurrenceKey(bucket.length, bucket.rows)
    for bucket in buckets.stored_buckets:
        yield RecurrenceKey(bucket.length, 1, keeps=True)


def _of_packed(size: int, dense: bool) -> Iterator[Key]:
    rows = packed_logit_rows(size)
    yield from (EmbedKey(size), QKVKey(size), QKVKey(size, rows), OutputMLPKey(size), OutputMLPKey(rows))
    yield from (PackedAttentionKey(size, 0, dense), PackedAttentionKey(size, rows, dense), GatherKey(rows))
