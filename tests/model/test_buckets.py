"""The shapes of programs, and when they are compiled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.buckets import (
    LABEL_BUCKETS,
    ROW_FLOOR,
    SHORTEST_PACKED,
    Buckets,
    LengthBucket,
    packed_logit_rows,
)
from model.executable_table import MAX_PROGRAMS
from model.layerwise.embed import EmbedKey
from model.layerwise.output_mlp import OutputMLPKey
from model.layerwise.packed_attention import PackedAttentionKey
from model.layerwise.self_attention import SelfAttentionKey
from model.layerwise.warm_up import core, rest
from model.programs.label_head import HeadKey
from scoring.layout import Head
from settings.engine import EngineSettings

BUCKETS = Buckets.of(256)
STEPS = (64, 128, 256, 2048)


def test_step_sizes_double_from_the_row_floor_and_length_buckets_from_the_shortest() -> None:
    assert BUCKETS.step_sizes == (64, 128, 256)
    assert [bucket.length for bucket in BUCKETS.length_buckets] == [8, 16, 32, 64, 128, 256]
    assert Buckets.of(64).step_sizes == (64,)
    assert Buckets.of(2048, one_size=True).step_sizes == (2048,)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_no_larger_than_its_tokens_need(step: int) -> None:
    buckets = Buckets.of(step)
    for tokens in range(1, step + 1):
        size = buckets.step_size(tokens)
        assert tokens <= size
        assert size == ROW_FLOOR or size < 2 * tokens


@pytest.mark.parametrize("step", STEPS)
def test_an_item_has_one_length_bucket_which_has_rows_for_all_items_that_fit_into_a_step(step: int) -> None:
    buckets = Buckets.of(step)
    for tokens in range(1, step + 1):
        bucket = next(bucket for bucket in buckets.length_buckets if tokens <= bucket.length)
        assert tokens <= bucket.length
        assert bucket.length == 8 or bucket.length < 2 * tokens
        assert bucket.rows == buckets.logit_rows or bucket.rows >= step // tokens


@given(tokens=st.integers(1, 8192), rows=st.integers(1, 1024), longest=st.sampled_from([100, 1000, 8192]))
def test_every_packed_sequence_has_programs_that_are_large_enough(tokens: int, rows: int, longest: int) -> None:
    tokens, rows = min(tokens, longest), min(rows, packed_logit_rows(longest))
    buckets = Buckets.of(256, packed=EngineSettings().multi_item_precompile_buckets, max_packed_tokens=longest)
    size, room = buckets.packed_shape(tokens, rows)
    assert tokens <= size <= max(longest, SHORTEST_PACKED)
    assert rows <= room
    waste = 1.25 if size <= 2_048 else 1.5
    assert size <= max(waste * max(tokens, 8 * rows), SHORTEST_PACKED)


def test_any_number_of_labels_has_a_bucket() -> None:
    assert [HeadKey.of(Head.LOGITS, n).labels for n in (1, 8, 9, 256, 257, 1025)] == [8, 8, 64, 256, 512, 2048]


@pytest.mark.parametrize("one_size", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_the_core_scores_anything_that_has_few_labels(step: int, one_size: bool) -> None:
    buckets = Buckets.of(step, one_size=one_size)
    first = core(buckets, blocks=7)
    assert len(set(first)) == len(first)
    assert {
        SelfAttentionKey(bucket.length, bucket.rows, last)
        for bucket in buckets.length_buckets
        for last in (False, True)
    } <= set(first)
    assert {HeadKey.of(head, labels) for head in Head for labels in range(1, LABEL_BUCKETS[0] + 1)} <= set(first)
    assert not any(isinstance(key, PackedAttentionKey) for key in first)
    later = rest(buckets, blocks=7, packed=False, dense=False)
    assert not set(first) & set(later)
    assert {EmbedKey(size) for size in buckets.step_sizes} <= {*first, *later}
    assert not any(isinstance(key, PackedAttentionKey) for key in later)


def test_there_are_few_programs() -> None:
    buckets = Buckets.of(256, first=EngineSettings().multi_item_warmup_chunk_sizes)
    assert len(core(buckets, 8)) == 27
    assert len(rest(buckets, 8, packed=False, dense=False)) == 22


def test_the_first_sizes_are_compiled_before_serving_and_the_largest_always() -> None:
    assert Buckets.of(256).warm_up_sizes == (256,)
    assert Buckets.of(256, first=(32, 128, 1_000)).warm_up_sizes == (64, 128, 256)


def test_the_items_of_a_step_are_limited_as_asked() -> None:
    assert max(bucket.rows for bucket in Buckets.of(256, max_rows=32).length_buckets) == 32
    assert Buckets.of(256, max_rows=32).logit_rows == ROW_FLOOR


@pytest.mark.parametrize("dense", [False, True])
def test_packed_sequences_have_all_their_programs_where_they_may_be_used(dense: bool) -> None:
    settings = EngineSettings()
    buckets = Buckets.of(256, packed=settings.multi_item_precompile_buckets, max_packed_tokens=8_192)
    keys = {*core(buckets, 8), *rest(buckets, 8, packed=not dense, dense=dense)}
    for tokens in range(1, 8_193, 61):
        size, rows = buckets.packed_shape(tokens, min(tokens, packed_logit_rows(tokens)))
        assert {PackedAttentionKey(size, 0, dense), PackedAttentionKey(size, rows, dense), OutputMLPKey(rows)} <= keys
    assert len(keys) < MAX_PROGRAMS


def test_a_step_has_a_logit_row_for_each_of_the_shortest_items() -> None:
    assert BUCKETS.length_buckets[0] == LengthBucket(8, 64)
