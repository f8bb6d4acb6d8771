"""Which programs there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.buckets import (
    LABELS,
    ROW_FLOOR,
    SHORTEST_PACKED,
    Buckets,
    EnterKey,
    LeaveKey,
    OwnKey,
    PackedKey,
    Span,
    packed_reads,
)
from model.executables import MOST_PROGRAMS
from scoring.layout import Head
from settings.engine import EngineSettings

BUCKETS = Buckets.of(256)
STEPS = (64, 128, 256, 2048)


def test_steps_double_from_the_row_floor_and_spans_from_the_shortest() -> None:
    assert BUCKETS.sizes == (64, 128, 256)
    assert [span.length for span in BUCKETS.spans] == [8, 16, 32, 64, 128, 256]
    assert Buckets.of(64).sizes == (64,)
    assert Buckets.of(2048, one_size=True).sizes == (2048,)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_no_larger_than_its_tokens_need(step: int) -> None:
    buckets = Buckets.of(step)
    for tokens in range(1, step + 1):
        size = buckets.size(tokens)
        assert tokens <= size
        assert size == ROW_FLOOR or size < 2 * tokens


@pytest.mark.parametrize("step", STEPS)
def test_an_item_has_one_span_and_a_step_has_room_for_all_items_of_a_span_that_fit(step: int) -> None:
    buckets = Buckets.of(step)
    for tokens in range(1, step + 1):
        span = buckets.span(tokens)
        assert tokens <= span.length
        assert span.length == 8 or span.length < 2 * tokens
        assert span.rows == buckets.reads or span.rows >= step // tokens


@given(tokens=st.integers(1, 8192), reads=st.integers(1, 1024), longest=st.sampled_from([100, 1000, 8192]))
def test_a_packed_sequence_has_programs_that_hold_it(tokens: int, reads: int, longest: int) -> None:
    tokens, reads = min(tokens, longest), min(reads, packed_reads(longest))
    buckets = Buckets.of(256, packed=EngineSettings().multi_item_precompile_buckets, longest_packed=longest)
    size, room = buckets.packed(tokens, reads)
    assert tokens <= size <= max(longest, SHORTEST_PACKED)
    assert reads <= room
    waste = 1.25 if size <= 2_048 else 1.5
    assert size <= max(waste * max(tokens, 8 * reads), SHORTEST_PACKED)


def test_any_number_of_labels_has_a_bucket() -> None:
    assert [BUCKETS.head(Head.LOGITS, n).labels for n in (1, 8, 9, 256, 257, 1025)] == [8, 8, 64, 256, 512, 2048]


@pytest.mark.parametrize("one_size", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_the_core_scores_anything_that_has_few_labels(step: int, one_size: bool) -> None:
    buckets = Buckets.of(step, one_size=one_size)
    core = buckets.core(blocks=7)
    assert len(set(core)) == len(core)
    assert {OwnKey(span.length, span.rows, last) for span in buckets.spans for last in (False, True)} <= set(core)
    assert {buckets.head(head, labels) for head in Head for labels in range(1, LABELS[0] + 1)} <= set(core)
    assert not any(isinstance(key, PackedKey) for key in core)
    rest = buckets.rest(blocks=7, packed=False, dense=False)
    assert not set(core) & set(rest)
    assert {EnterKey(size) for size in buckets.sizes} <= {*core, *rest}
    assert not any(isinstance(key, PackedKey) for key in rest)


def test_the_whole_table_is_small() -> None:
    buckets = Buckets.of(256, first=EngineSettings().multi_item_warmup_chunk_sizes)
    assert len(buckets.core(8)) == 25
    assert len(buckets.rest(8, packed=False, dense=False)) == 9


def test_the_first_sizes_are_compiled_before_serving_and_the_largest_always() -> None:
    assert Buckets.of(256).first == (256,)
    assert Buckets.of(256, first=(32, 128, 1_000)).first == (64, 128, 256)


def test_no_more_items_share_a_step_than_are_wanted() -> None:
    assert max(span.rows for span in Buckets.of(256, most_rows=32).spans) == 32
    assert Buckets.of(256, most_rows=32).reads == ROW_FLOOR


@pytest.mark.parametrize("dense", [False, True])
def test_packed_sequences_have_all_their_programs_where_they_may_be_used(dense: bool) -> None:
    settings = EngineSettings()
    buckets = Buckets.of(256, packed=settings.multi_item_precompile_buckets, longest_packed=8_192)
    rest = {*buckets.core(8), *buckets.rest(8, packed=not dense, dense=dense)}
    for tokens in range(1, 8_193, 61):
        size, reads = buckets.packed(tokens, min(tokens, packed_reads(tokens)))
        assert {PackedKey(size, 0, dense), PackedKey(size, reads, dense), LeaveKey(reads)} <= rest
    assert len(rest) < MOST_PROGRAMS


def test_the_shortest_items_share_a_step_as_many_as_it_reads() -> None:
    assert BUCKETS.spans[0] == Span(8, 64)
